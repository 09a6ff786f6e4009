"""What SeaKR, CoT, IRCoT, FLARE and ITER-RETGEN show, as data: of recorded runs of scripted models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from dubito.graphs import cot, flare, ircot, iter_retgen, seakr
from dubito.models.interfaces import Completion
from dubito.presenters.blocks import Bars, Block, Fold, Pairs, Table, Words
from dubito.presenters.presenter import (
    SHARED,
    StepSummary,
    figures_of,
    outcome_of,
    presenter_of,
    summary_of,
)
from dubito.presenters.reasoning import STOP_REASONS
from dubito.resources.resources import Resources
from dubito.state.baselines import FlareContext
from dubito.state.context import BaseContext
from dubito.state.reasoning import ReasoningContext, SearchingContext, StopReason
from dubito.state.seakr import SeaKRContext
from dubito.tests.recorded import SENTENCES, recorded, recording_of, retrieved
from dubito.tests.scripted import QUESTION, ListedRetriever, Reasoner, ScriptedEncoder, doubted
from dubito.traces.events import NodeStart
from dubito.traces.recording import Recording
from dubito.traces.run import Run
from dubito.traces.steps import Step, Steps, named

GRAPHS = {"seakr": seakr, "cot": cot, "ircot": ircot, "flare": flare, "iter_retgen": iter_retgen}
SAID, NEXT, LAST = "The founder is Ada.", "Ada was born in Kirkby.", "So the final answer is: the Lune."
SURE_WORDS = "Ada born village slate roofs day's walk town two letters say"
LIKELY_WORDS = "Ada born Kirkby village slate roofs day's walk town two letters say"


def through(*sentences: str | Completion) -> Callable[[Sequence[str], Sequence[str]], str | Completion]:
    return lambda shown, said: sentences[len(said)]


def reasoned(
    name: str,
    context: BaseContext,
    llm: Reasoner,
    path: Path,
    search: Callable[[str], Sequence[str]] = lambda query: ["a", "b", "c"],
) -> Recording:
    """A recorded run; `search` gives the ids that a query finds."""
    opened = Resources(llm, ScriptedEncoder(), ListedRetriever(search))
    return recorded(Run(GRAPHS[name].build(opened).compile(name=name), QUESTION, context), path)


def said(recording: Recording) -> list[tuple[str, str]]:
    """Node and words of each step that is shown."""
    shown = [(step.node, summary_of(step)) for step in recording.steps]
    return [(node, summary.words) for node, summary in shown if not summary.hidden]


def summary(recording: Recording, node: str, number: int = 0) -> StepSummary:
    return summary_of(named(recording.steps, node)[number])


def texts(table: Block) -> list[list[str]]:
    """A table's cells; those of a marked row with a star before them."""
    assert isinstance(table, Table)
    return [[*("*" if row.marked else ""), *(cell.text for cell in row.cells)] for row in table.rows]


# --- what each step says ---


def test_every_step_and_every_reason_to_stop_has_words() -> None:
    for name, module in GRAPHS.items():
        graph: Any = module.graph
        assert (
            set(graph.nodes) - {"__start__"}
            <= presenter_of(name).steps.keys() | presenter_of(name).live_steps.keys() | SHARED.keys()
        )
    assert set(get_args(StopReason)) == STOP_REASONS.keys()


def test_the_steps_of_seakr() -> None:
    first, second, last = SENTENCES
    assert said(recording_of("seakr")) == [
        ("prepare", ""),
        ("pseudo_generate", first),
        ("pseudo_generate", second),
        ("formulate_query", SURE_WORDS),
        ("search_snippets", "2 new snippets"),
        ("try_snippet", ""),
        ("rerank_snippets", "keeps Tb"),
        ("pseudo_generate", last),
        ("append_rationale", "step 3 is the last: a sentence gave the answer"),
        ("reason_over_knowledge", "the Lune (from the snippets, U -6.50)"),
        ("reason_over_rationales", "the Lune (from the sentences, U -6.50)"),
        ("choose_strategy", "the answer from the snippets"),
    ]
    assert list(summary(recording_of("seakr"), "search_snippets").blocks) == [Words("Tb; Tc", "dim")]


@pytest.mark.parametrize(("number", "u", "words"), [(0, -6.5, "-6.50 ≤ δ"), (1, -4.0, "-4.00 > δ")])
def test_u_of_a_drafted_sentence_against_delta(number: int, u: float, words: str) -> None:
    (bars,) = summary(recording_of("seakr"), "pseudo_generate", number).blocks
    assert isinstance(bars, Bars)
    assert (bars.limit, bars.limit_name) == (-6.0, "δ = -6")
    (bar,) = bars.bars
    assert bar.value == pytest.approx(u)
    assert bar.text == words


def test_a_u_that_is_unknown_and_one_that_is_not_needed(tmp_path: Path) -> None:
    llm = Reasoner(step=through(LAST), uncertainty=lambda kind, shown, said: None)
    unknown = reasoned("seakr", SeaKRContext(retrieval_threshold="-6", max_docs=0), llm, tmp_path)
    assert list(summary(unknown, "pseudo_generate").blocks) == [Words("U is unknown and counts as above δ", "warn")]
    settings = SeaKRContext(retrieval_threshold="-6", max_docs=1, self_aware_retrieval=False)
    not_needed = reasoned("seakr", settings, llm, tmp_path)
    assert summary(not_needed, "pseudo_generate") == StepSummary(LAST)


def test_flare_may_keep_what_an_earlier_sentence_was_written_with(tmp_path: Path) -> None:
    said = through(doubted(SAID, Ada=0.1), doubted(NEXT, Kirkby=0.1), LAST)
    run = reasoned("flare", FlareContext(passages="current"), Reasoner(step=said), tmp_path, lambda query: ["a"])
    assert [summary(run, "search_snippets", number).words for number in (0, 1)] == ["1 snippet"] * 2
    assert [summary(run, "keep_snippets", number).words for number in (0, 1)] == ["keeps Ta"] * 2


def test_a_query_that_was_searched_for_before(tmp_path: Path) -> None:
    llm = Reasoner(step=through(SAID, doubted("Its founder was Ada.", Its=0.1)), uncertainty=lambda *_: -5.0)
    run = reasoned("seakr", SeaKRContext(retrieval_threshold="-6"), llm, tmp_path, lambda query: [])
    assert summary(run, "formulate_query", 1).words == "founder Ada: the query was searched for before"
    assert summary(run, "search_snippets").words == "no new snippet"
    assert summary(run, "rerank_snippets").words == "nothing to keep"
    assert figures_of(run)[-2] == Words("It ended because the query was searched for before.")


def test_the_snippets_that_were_tried_and_what_each_does_to_u() -> None:
    (table,) = summary(recording_of("seakr"), "try_snippet").blocks
    assert texts(table) == [["Tb", "-6.50", "-2.50", SENTENCES[1], ""], ["Tc", "-6.50", "-2.50", SENTENCES[1], ""]]


@pytest.mark.parametrize("name", GRAPHS)
def test_a_step_under_way_says_nothing_that_it_does_not_know(name: str) -> None:
    for done in recording_of(name).steps:
        live = Steps(name, GRAPHS[name].graph)
        step = live.on(NodeStart(namespace=(), at=1.0, node=done.node, task="t", input=done.input))
        assert isinstance(step, Step)
        assert summary_of(step).words in {"", "1 snippet to try"}


def test_the_steps_of_ircot() -> None:
    first, second, last = SENTENCES
    steps = said(recording_of("ircot"))
    assert steps[1:9] == [
        ("query_from_last_rationale", QUESTION),
        ("search_snippets", "1 new snippet"),
        ("keep_snippets", "keeps Ta"),
        ("write_step", first),
        ("query_from_last_rationale", first),
        ("search_snippets", "1 new snippet"),
        ("keep_snippets", "keeps Tb"),
        ("write_step", second),
    ]
    assert steps[-1] == ("answer_from_rationales", "")
    assert ("write_step", last) in steps


def test_the_steps_of_flare_and_of_chain_of_thought() -> None:
    first, second, last = SENTENCES
    assert ("mask_unlikely_words", LIKELY_WORDS) in said(recording_of("flare"))
    assert [words for node, words in said(recording_of("cot")) if node == "draft_step"] == [first, second, last]


def test_a_sentence_that_is_empty(tmp_path: Path) -> None:
    run = reasoned("cot", ReasoningContext(), Reasoner(step=through("")), tmp_path)
    assert said(run)[1:3] == [
        ("draft_step", "(nothing)"),
        ("append_rationale", "step 1 is the last: the model wrote no further sentence"),
    ]


def test_the_steps_of_iter_retgen() -> None:
    first, second = [
        step for step in recording_of("iter_retgen").steps if step.node == "generation_augmented_retrieval"
    ]
    assert summary_of(first) == StepSummary(f"2 chunks for: {QUESTION}", [Words("Ta; Tb", "dim")])
    assert summary_of(second).words.endswith(f"{SENTENCES[2]} {QUESTION}")
    assert summary(recording_of("iter_retgen"), "retrieval_augmented_generation").words == "the Lune"


# --- figures ---


def test_the_figures_of_seakr() -> None:
    bars, reasoning, fold, ended, answers = figures_of(recording_of("seakr"))
    assert isinstance(bars, Bars)
    assert [(bar.label, bar.text) for bar in bars.bars] == [
        ("step 1, without a snippet", "-6.50"),
        ("step 2, without a snippet", "-4.00"),
        ("step 2, with the snippet kept", "-6.50"),
        ("step 3, without a snippet", "-6.50"),
    ]
    assert bars.limit == -6.0
    assert [[row[0], *row[2:]] for row in texts(reasoning)] == [
        ["1", "nothing", ""],
        ["2", SURE_WORDS, "Tb"],
        ["3", "nothing", ""],
    ]
    assert isinstance(fold, Fold)
    assert fold.title == "Step 2: 2 snippets tried"
    assert texts(fold.blocks[0]) == [
        ["*", "Tb", "-6.50", "-2.50", SENTENCES[1], "kept"],
        ["Tc", "-6.50", "-2.50", SENTENCES[1], ""],
    ]
    assert ended == Words("It ended because a sentence gave the answer.")
    assert texts(answers) == [
        ["the sentences", "the Lune", "-6.50", ""],
        ["*", "the snippets", "the Lune", "-6.50", "chosen"],
    ]


def test_figures_of_u_that_is_unknown(tmp_path: Path) -> None:
    llm = Reasoner(step=through(SAID, LAST), uncertainty=lambda *_: None)
    bars, _, fold, *_, answers = figures_of(
        reasoned("seakr", SeaKRContext(retrieval_threshold="-6", k=1), llm, tmp_path)
    )
    assert isinstance(bars, Bars)
    assert {(bar.value, bar.text) for bar in bars.bars} == {(None, "not measured")}
    assert isinstance(fold, Fold)
    assert texts(fold.blocks[0]) == [["*", "Ta", "not measured", "", SAID, "kept"]]
    assert [row[-2] for row in texts(answers)] == ["not measured"] * 2


@pytest.mark.parametrize(
    ("name", "queries", "kept"),
    [
        ("cot", ["nothing"] * 3, ["", "", ""]),
        ("ircot", [QUESTION, SENTENCES[0], SENTENCES[1]], ["Ta", "Tb", "Tc"]),
        (
            "flare",
            ["nothing", LIKELY_WORDS, "nothing"],
            ["", "Tb", ""],
        ),
    ],
)
def test_the_figures_of_the_baselines(name: str, queries: list[str], kept: list[str]) -> None:
    table, ended = figures_of(recording_of(name))
    rows = zip(["1", "2", "3"], SENTENCES, queries, kept, strict=True)
    assert texts(table) == [list(row) for row in rows]
    assert ended == Words("It ended because a sentence gave the answer.")


def test_the_iterations_of_iter_retgen() -> None:
    (table,) = figures_of(recording_of("iter_retgen"))
    first, second = texts(table)
    assert first[:3] == ["1", QUESTION, "Ta; Tb"]
    assert second[:3] == ["2", f"{first[3]} {QUESTION}", "Tb; Tc (new)"]
    assert [first[4], second[4]] == ["the Lune"] * 2


@pytest.mark.parametrize("name", GRAPHS)
def test_a_run_that_broke_off_at_once(name: str) -> None:
    what = "an iteration was over" if name == "iter_retgen" else "a step was written"
    assert figures_of(recording_of(name, until=1)) == [Words(f"The run ended before {what}.")]


# --- under the answer ---


def test_the_sentences_stand_under_the_answer() -> None:
    run = recording_of("ircot")
    assert run.output is not None
    (pairs,) = outcome_of("ircot", run.output, run.settings)
    assert isinstance(pairs, Pairs)
    assert pairs.title == "The reasoning, 3 steps; it ended because a sentence gave the answer:"
    assert list(pairs.pairs) == [
        (f"{number}", f"{text} (from {name})")
        for number, text, name in zip((1, 2, 3), SENTENCES, ("Ta", "Tb", "Tc"), strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("seakr", "Uncertainty: highest U -6.50, at most the threshold -6."),
        ("flare", "Uncertainty: 1 − lowest probability of a word 0.500, above the threshold 0.200."),
    ],
)
def test_how_sure_it_is_stands_under_the_answer(name: str, words: str) -> None:
    run = recording_of(name)
    assert run.output is not None
    first, *_ = outcome_of(name, run.output, run.settings)
    assert isinstance(first, Words)
    assert first.text == words


def test_the_answer_that_was_not_chosen_stands_under_seakrs() -> None:
    run = recording_of("seakr")
    assert run.output is not None
    last = outcome_of("seakr", run.output, run.settings)[-1]
    assert last == Words(
        "Chosen: the Lune (from the snippets, U -6.50). Not chosen: the Lune (from the sentences, U -6.50).", "dim"
    )


# --- what was retrieved ---


@pytest.mark.parametrize(
    ("name", "steps"),
    [("cot", []), ("flare", [(LIKELY_WORDS, "b", "b")]), ("seakr", [(SURE_WORDS, "b", "b")])],
)
def test_the_snippets_that_were_kept_are_what_was_retrieved(name: str, steps: list[tuple[str, str, str]]) -> None:
    assert retrieved(recording_of(name)) == steps


def test_ircot_keeps_a_snippet_a_step_and_a_search_in_vain_is_no_step(tmp_path: Path) -> None:
    found = {QUESTION: ["a"], SAID: [], NEXT: ["b"]}
    llm = Reasoner(step=through(SAID, NEXT, LAST))
    run = reasoned("ircot", SearchingContext(), llm, tmp_path, lambda query: found[query])
    assert retrieved(run) == [(QUESTION, "a", "a"), (NEXT, "b", "a b")]


def test_iter_retgen_replaces_its_context() -> None:
    first, second = retrieved(recording_of("iter_retgen"))
    assert first == (QUESTION, "a b", "a b")
    assert second[1:] == ("c", "b c")


def strategies(chosen: str, *answers: tuple[str, str, float | None]) -> dict[str, Any]:
    rows = [{"strategy": strategy, "answer": answer, "uncertainty": u} for strategy, answer, u in answers]
    step = {"rationale": "So the answer is Paris.", "query": "", "chunk_ids": [], "uncertainty": -7.0}
    output = {"steps": [step], "evidence": [], "stop_reason": "answered", "strategy": chosen}
    return {**output, "strategy_answers": rows}


@pytest.mark.parametrize(
    ("output", "end"),
    [
        (strategies("rationales", ("rationales", "Paris", -7.0)), "gave the answer."),
        (
            strategies("rationales", ("rationales", "Paris", -7.0), ("knowledge", "Rome", -6.0)),
            "The answer from the sentences was the more certain one.",
        ),
        (
            strategies("knowledge", ("rationales", "", -9.0), ("knowledge", "Paris", -5.0)),
            "The answer from the snippets was chosen: the other one says nothing.",
        ),
        (
            strategies("knowledge", ("rationales", "Rome", None), ("knowledge", "Paris", -5.0)),
            "The answer from the snippets was chosen.",
        ),
    ],
)
def test_seakr_says_of_two_answers_why_one_was_chosen(output: dict[str, Any], end: str) -> None:
    assert presenter_of("seakr").why(output).endswith(end)
