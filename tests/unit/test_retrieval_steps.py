"""What a run retrieved, read from real traces of every graph, recorded here with scripted models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.evals.retrieval_steps import READERS, RetrievalStep, retrieval_steps
from dubito.graphs import cot, dense, flare, ircot, iter_retgen, seakr
from dubito.graphs.registry import graph_names
from dubito.models.interfaces import Completion
from dubito.models.resources import Resources
from dubito.state.baselines import FlareContext, IRCoTContext, IterRetgenContext
from dubito.state.context import BaseContext
from dubito.state.dense import DenseContext
from dubito.state.reasoning import ReasoningContext
from dubito.state.seakr import SeaKRContext
from dubito.tests.recorded import RUNS, WHERE, WHO, record, seper_run
from dubito.tests.scripted import QUESTION, ListedRetriever, Reader, Reasoner, ScriptedEncoder, ScriptedJudge, doubted
from dubito.traces.recording import read
from dubito.traces.run import Run

SAID, NEXT, LAST = "The founder is Ada.", "Ada was born in Kirkby.", "So the final answer is: the Lune."


def through(*sentences: str | Completion) -> Callable[[Sequence[str], Sequence[str]], str | Completion]:
    return lambda shown, said: sentences[len(said)]


def reasoned(
    module: ModuleType, context: BaseContext, llm: Reasoner, found: Callable[[str], Sequence[str]] | None = None
) -> Run:
    """A run of a graph that reasons; `found` says what a query finds."""
    retriever = ListedRetriever(found or (lambda query: ["a", "b", "c"]))
    graph = module.build(Resources(llm, ScriptedEncoder(), retriever)).compile(name=module.__name__.rpartition(".")[2])
    return Run(graph, QUESTION, context)


def steps_of(run: Run, folder: Path) -> list[RetrievalStep]:
    record(run, folder / "t.jsonl")
    return retrieval_steps(read(folder / "t.jsonl"))


def ids(chunks: Sequence[Any]) -> str:
    return " ".join(chunk["id"] for chunk in chunks)


def told(steps: Sequence[RetrievalStep]) -> list[tuple[str, str, str]]:
    return [(step.label, ids(step.new), ids(step.known)) for step in steps]


def test_every_graph_is_known() -> None:
    assert set(READERS) == set(graph_names())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vanilla_rag", [(QUESTION, "c0 c1", "c0 c1")]),
        ("df_rag", [("λ* = 0.3", "c0 c5 c6", "c0 c5 c6")]),
        ("dense", [(QUESTION, "c0 c1 c2", "c0 c1 c2")]),
        (
            "dense_rag",
            [
                ("retrieve (tokens:128/16)", "c0 c1", "c0 c1"),
                ("refine, round 1", "c2", "c0 c2"),  # c1 is dropped
                ("refine, round 2", "c3", "c0 c2 c3"),
            ],
        ),
        (
            "sunar",
            [(WHO, "n1 f1", "n1 f1"), (WHERE, "b1 b2", "n1 f1 b1 b2"), ("meta evidence", "", "f1 n1 b1 b2")],
        ),
        ("neighbourhood", [(QUESTION, "n1 b1", "n1 b1")]),
        ("seper", [(QUESTION, "c0 c1", "c0 c1")]),
    ],
)
def test_what_a_run_retrieved(name: str, expected: list[tuple[str, str, str]], tmp_path: Path) -> None:
    assert told(steps_of(RUNS[name](), tmp_path)) == expected


@pytest.mark.parametrize(("name", "first"), [("sunar", "f1 f2"), ("neighbourhood", "f1 f2")])
def test_before_and_after_the_re_ranking(name: str, first: str, tmp_path: Path) -> None:
    steps = steps_of(RUNS[name](), tmp_path)
    assert ids(steps[0].first_stage) == first, "as many as are kept, in the order of the search"
    assert ids(steps[0].reranked) == ids(steps[0].new)
    if name == "sunar":
        assert (ids(steps[1].first_stage), ids(steps[1].reranked)) == ("b1 b2", "b1 b2")
        assert (steps[2].first_stage, steps[2].reranked) == ((), ())


def test_a_look_up_that_finds_what_an_earlier_one_found(tmp_path: Path) -> None:
    record(RUNS["sunar"](), tmp_path / "t.jsonl")
    text = (tmp_path / "t.jsonl").read_text().replace('"b1"', '"f1"')
    (tmp_path / "t.jsonl").write_text(text)
    steps = retrieval_steps(read(tmp_path / "t.jsonl"))
    assert told(steps)[1] == (WHERE, "b2", "n1 f1 b2")


def test_chunks_that_were_given(tmp_path: Path) -> None:
    graph: Any = dense.build(Resources(Reader(), ScriptedEncoder(), judge=ScriptedJudge())).compile(name="dense")
    steps = steps_of(Run(graph, QUESTION, DenseContext(), {"chunks": ["one", "two"]}), tmp_path)
    assert told(steps) == [("the chunks that were given", "given#1 given#2", "given#1 given#2")]
    nothing = Run(graph, QUESTION, DenseContext(), {"chunks": []})
    assert steps_of(nothing, tmp_path) == []


def test_cot_retrieves_nothing(tmp_path: Path) -> None:
    assert steps_of(reasoned(cot, ReasoningContext(), Reasoner(step=through(SAID, LAST))), tmp_path) == []


def test_ircot_keeps_a_snippet_a_step(tmp_path: Path) -> None:
    run = reasoned(ircot, IRCoTContext(), Reasoner(step=through(SAID, NEXT, LAST)))
    assert told(steps_of(run, tmp_path)) == [(QUESTION, "a", "a"), (SAID, "b", "a b"), (NEXT, "c", "a b c")]


def test_a_search_that_finds_nothing_is_no_step(tmp_path: Path) -> None:
    found = {QUESTION: ["a"], SAID: [], NEXT: ["b"]}
    run = reasoned(ircot, IRCoTContext(), Reasoner(step=through(SAID, NEXT, LAST)), lambda query: found[query])
    assert told(steps_of(run, tmp_path)) == [(QUESTION, "a", "a"), (NEXT, "b", "a b")]


def test_flare_looks_up_where_a_word_is_unlikely(tmp_path: Path) -> None:
    llm = Reasoner(step=through(SAID, doubted(NEXT, Kirkby=0.1), LAST))
    steps = steps_of(reasoned(flare, FlareContext(), llm), tmp_path)
    assert [(ids(step.new), ids(step.known)) for step in steps] == [("a", "a")]
    assert "Ada" in steps[0].label
    assert "Kirkby" not in steps[0].label


def test_seakr_keeps_the_snippet_of_the_lowest_uncertainty(tmp_path: Path) -> None:
    def uncertainty(kind: str, shown: Sequence[str], said: Sequence[str]) -> float:
        if len(said) == 1 and not shown:
            return -2.0
        return -6.9 if shown == ("b",) else -6.5 if shown else -6.9

    llm = Reasoner(step=through(SAID, NEXT, LAST), uncertainty=uncertainty)
    steps = steps_of(reasoned(seakr, SeaKRContext(threshold="-6"), llm), tmp_path)
    assert [(ids(step.new), ids(step.known)) for step in steps] == [("b", "b")]


def test_iter_retgen_replaces_its_context(tmp_path: Path) -> None:
    run = reasoned(
        iter_retgen,
        IterRetgenContext(k=2),
        Reasoner(whole=lambda shown: f"It is so. {LAST}"),
        lambda query: ["a", "b"] if query == QUESTION else ["b", "c"],
    )
    assert told(steps_of(run, tmp_path)) == [
        (QUESTION, "a b", "a b"),
        (f"It is so. {LAST} {QUESTION}", "c", "b c"),
    ]


def test_a_trace_that_ends_early_has_the_steps_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    record(RUNS["sunar"](), path)
    lines = path.read_bytes().splitlines(keepends=True)
    noted = [i for i, line in enumerate(lines) if json.loads(line).get("node") == "note"]
    path.write_bytes(b"".join(lines[: noted[0]]))
    assert told(retrieval_steps(read(path))) == [(WHO, "n1 f1", "n1 f1")]
    path.write_bytes(lines[0])
    assert retrieval_steps(read(path)) == []


def test_the_chunks_are_whole(tmp_path: Path) -> None:
    (step,) = steps_of(seper_run(), tmp_path)
    assert [(chunk["title"], chunk["text"]) for chunk in step.known] == [("T0", "text 0"), ("T1", "text 1")]


def edited(folder: Path, old: str, new: str) -> Path:
    record(RUNS["vanilla_rag"](), folder / "t.jsonl")
    text = (folder / "t.jsonl").read_text()
    assert old in text
    (folder / "t.jsonl").write_text(text.replace(old, new))
    return folder / "t.jsonl"


def test_a_graph_of_somebody_elses_is_refused(tmp_path: Path) -> None:
    path = edited(tmp_path, '"graph": "vanilla_rag"', '"graph": "agent"')
    with pytest.raises(UserFault, match="a run of 'agent' retrieves is not known"):
        retrieval_steps(read(path))


def test_a_trace_of_another_release_is_refused(tmp_path: Path) -> None:
    path = edited(tmp_path, '"update": {"evidence": [{"id"', '"update": {"evidence": [{"name"')
    with pytest.raises(UserFault, match=r"differs from the one known here: record the run anew\."):
        retrieval_steps(read(path))
