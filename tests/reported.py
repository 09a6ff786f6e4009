"""A small run of an evaluation, made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dubito.evals.run_folder import MANIFEST, QUESTIONS, RESULTS, VERSION, EvaluationRun, RunQuestion, System, read
from dubito.evals.store import Outcome, Store
from dubito.tests.json_lines import write_lines

START = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def asked(name: str, *answers: str, gold: Sequence[str] = (), dataset: str = "small", **more: Any) -> RunQuestion:
    kind: Any = more.pop("kind", "text")
    found = {"question": f"What is {name}?", "answerable": True, "corpus": "", **more}
    return RunQuestion(
        id=f"{dataset}/{name}", dataset=dataset, answers=answers, kind=kind, gold_documents=tuple(gold), **found
    )


def vanilla(label: str = "plain", **context: Any) -> System:
    return System(label, "vanilla_rag", {"llm": "embedded", "selection": "top_k", "fixed_lambda": 0.7, **context})


def chunk(document: str, title: str = "", text: str = "text") -> dict[str, Any]:
    return {"id": f"{document}#0", "doc_id": document, "title": title or document.upper(), "text": text}


def unsure(signal: str, value: float | None, threshold: float | None) -> dict[str, Any]:
    """A technique's own uncertainty, as its output has it."""
    return {"signal": signal, "value": value, "threshold": threshold}


def dse(value: float | None) -> dict[str, Any]:
    return unsure("DSE", value, 0.2)


def usage(**nodes: tuple[int, int, int, float]) -> dict[str, Any]:
    """Of each node calls, prompt and completion tokens, seconds."""
    names = ("calls", "prompt_tokens", "completion_tokens", "seconds")
    by_node = {node: {"runs": 1, **dict(zip(names, cost, strict=True))} for node, cost in nodes.items()}
    return {**{name: sum(one[name] for one in by_node.values()) for name in names[:3]}, "nodes": by_node}


def answered(system: str, question: str, answer: str, *, trace: bytes = b"", **more: Any) -> Outcome:
    costs = {name: more.pop(name) for name in ("seconds", "remembered", "remembered_seconds") if name in more}
    output = {"answer": answer, "evidence": [], "usage": usage(generate=(1, 10, 2, 0.5)), "warnings": [], **more}
    return Outcome(
        system=system, question=f"small/{question}", output=output, error=None, trace=trace, **{"seconds": 1.0, **costs}
    )


def failed(
    system: str,
    question: str,
    message: str = "No answer came.",
    kind: str = "ModelUnavailable",
    spent: tuple[int, int, int] | None = None,
) -> Outcome:
    """spent: calls, tokens read and written."""
    error: dict[str, Any] = {"type": kind, "message": message, "unavailable": True}
    if spent is not None:
        error["spent"] = dict(zip(("calls", "prompt_tokens", "completion_tokens"), spent, strict=True))
    return Outcome(system=system, question=f"small/{question}", output=None, error=error, seconds=0.1)


def trace_of(*steps: tuple[str, Mapping[str, Any]], graph: str = "vanilla_rag") -> bytes:
    """A trace in which each node ran once, a second long."""
    lines: list[dict[str, Any]] = [
        {"type": "run", "at": 0, "version": 2, "dubito": "0", "graph": graph, "context": {}, "question": "What?"}
    ]
    for place, (node, update) in enumerate(steps):
        where = {"node": node, "task": f"t{place}", "namespace": []}
        lines += [
            {"type": "node_start", "at": place, **where, "input": {}},
            {"type": "node_end", "at": place + 1, **where, "seconds": 1.0, "update": update, "error": None},
        ]
    lines.append({"type": "end", "at": len(steps), "seconds": len(steps), "output": {"answer": "so"}})
    stamped = [{**line, "timestamp": (START + timedelta(seconds=line["at"])).isoformat()} for line in lines]
    return b"".join(json.dumps(line).encode() + b"\n" for line in stamped)


def made(
    folder: Path,
    systems: Sequence[System],
    questions: Sequence[RunQuestion],
    outcomes: Sequence[Outcome] = (),
    **about: Any,
) -> tuple[EvaluationRun, Store]:
    """The run, read from its folder."""
    folder.mkdir()
    names = dict.fromkeys(one.dataset for one in questions)
    datasets = [
        {"name": name, "questions": sum(one.dataset == name for one in questions), "of": 9, "left_out": []}
        for name in names
    ]
    told = {
        "id": "1",
        "dubito": "0.1.0",
        "seed": 5,
        "corpus": "pooled",
        "datasets": datasets,
        "command": "dubito eval x",
        **about,
    }
    manifest = {"version": VERSION, **told, "systems": [asdict(one) for one in systems]}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    write_lines(folder / QUESTIONS, (asdict(one) for one in questions))
    store = Store(folder / RESULTS, new=True)
    for outcome in outcomes:
        store.add(outcome)
    return read(folder), store
