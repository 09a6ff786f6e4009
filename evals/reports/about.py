"""What a run is: when, with what, on what, and how its systems differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ..bench import OWN, POOLED, Bench
from .summary import Summary
from .words import counted, plain

MODELS = ("llm", "encoder", "judge", "reranker", "graph_encoder", "first_stage")
"""The settings that name models."""

_CORPORA = {POOLED: "all paragraphs of each dataset's questions", OWN: "each question's own paragraphs"}


def header(summary: Summary) -> list[tuple[str, str]]:
    """The facts of a run, by name; the command, which is longer, is not among them."""
    bench, about = summary.bench, summary.bench.about
    datasets = [
        f"{one.dataset} ({len(one.questions):,}{f' of {one.of:,}' if one.of is not None else ''})"
        for one in summary.sections
    ]
    facts = [
        ("questions", "; ".join(datasets)),
        ("seed", plain(about.get("seed", "-"))),
        ("corpus", _corpus(bench)),
        ("models", "; ".join(f"{name} {', '.join(values)}" for name, values in models(bench).items())),
        ("begun", _begun(bench)),
        ("dubito", plain(about.get("dubito", "-"))),
        ("answers are normalised as in", {"squad": "SQuAD", "longbench": "LongBench"}[summary.standard]),
    ]
    return [*facts, ("state", state(summary))]


def state(summary: Summary) -> str:
    """'12 answered, 1 failed, 3 not asked yet'."""
    said = [f"{summary.answered:,} answered", f"{summary.failed:,} failed"]
    return ", ".join([*said, f"{summary.left:,} not asked yet"] if summary.left else said)


def models(bench: Bench) -> dict[str, list[str]]:
    """Every model that a system names, by what it is for."""
    found = {
        name: list(dict.fromkeys(plain(one.context[name]) for one in bench.systems if name in one.context))
        for name in MODELS
    }
    return {name: values for name, values in found.items() if values}


def differing(bench: Bench) -> dict[str, dict[str, str]]:
    """Of each system the settings in which it differs from another one that has them."""
    values: dict[str, set[str]] = {}
    for system in bench.systems:
        for name, value in system.context.items():
            values.setdefault(name, set()).add(plain(value))
    return {
        system.label: {name: plain(value) for name, value in system.context.items() if len(values[name]) > 1}
        for system in bench.systems
    }


def command(bench: Bench) -> str:
    """What makes the run again; empty where the run does not say."""
    return plain(bench.about.get("command") or "")


def left_out(summary: Summary) -> list[str]:
    """What the datasets' readers passed over."""
    return [
        f"{one.dataset}: {counted(len(one.left_out), 'record')} left out, the first one so: {one.left_out[0]}"
        for one in summary.sections
        if one.left_out
    ]


def notes(summary: Summary) -> Sequence[str]:
    """What has to be known to read the tables."""
    said = ["Means are over answered questions, with 95% bootstrap intervals; failures stand beside and count as none."]
    if summary.failed or summary.left:
        said.append(
            "So rows may be of different questions: compare systems by the tests, which take what both answered."
        )
    return said


def _corpus(bench: Bench) -> str:
    said = bench.about.get("corpus")
    if said in _CORPORA:
        return _CORPORA[str(said)]
    named: Mapping[str, Any] = {plain(one.context["corpus"]): 0 for one in bench.systems if "corpus" in one.context}
    return ", ".join(named) or "-"


def _begun(bench: Bench) -> str:
    try:
        return datetime.fromisoformat(plain(bench.about["begun"])).strftime("%Y-%m-%d %H:%M %Z")
    except (KeyError, ValueError):
        return "-"
