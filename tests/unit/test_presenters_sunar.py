"""What is shown of `sunar` and `neighbourhood`: each step, the figures of a page, the outcome, the retrieval steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from dubito.graphs import sunar as sunar_graph
from dubito.presenters.blocks import Block, Flow, Fold, Gauge, Pairs, Table, Words
from dubito.presenters.neighbourhood import MOST_ENTERED, STOP_REASONS, entered_best, look_up
from dubito.presenters.presenter import (
    SHARED,
    StepSummary,
    figures_of,
    outcome_of,
    presenter_of,
    retrieval_steps,
    summary_of,
)
from dubito.render.trace_page import render
from dubito.resources.resources import Resources
from dubito.state.neighbourhood import NeighbourhoodContext, Pool, ScoredDocument, StopReason
from dubito.state.sunar import SunarContext
from dubito.tests.recorded import RUNS, WHERE, WHO, cells, ids, record, recording_of, retrieved, trace_of
from dubito.tests.scripted import (
    QUESTION,
    Explorer,
    ListedRetriever,
    ScriptedEncoder,
    ScriptedGraph,
    ScriptedJudge,
    ScriptedReranker,
)
from dubito.traces.events import Progress
from dubito.traces.recording import Recording, assembled, read
from dubito.traces.run import Run
from dubito.traces.steps import NodeRun, Step

EMPTY = StepSummary()


def said(recording: Recording, node: str) -> list[StepSummary]:
    return [summary_of(step) for _, step in recording.walk() if step.node == node]


def words(recording: Recording, node: str) -> list[str]:
    return [summary.words for summary in said(recording, node)]


def step(node: str, given: dict[str, Any], update: dict[str, Any] | None = None, **settings: Any) -> Step:
    """A step of a look-up; without an update it is under way."""
    run = NodeRun("t", 0.0, given) if update is None else NodeRun("t", 0.0, given, 1.0, update)
    return Step(1, "neighbourhood", node, (), 0, 1, {}, NeighbourhoodContext(**settings), [run])


def scored(chunk_id: str, score: float, pool: Pool = "first_stage", parent: str | None = None) -> ScoredDocument:
    found: ScoredDocument = {
        "chunk_id": chunk_id, "iteration": 0, "pool": pool, "parent": parent, "raw_score": score,
        "number_of_semantic_sets": 1, "score": score,
    }  # fmt: skip
    return found


# the steps of a look-up


def test_a_look_up_is_told_batch_by_batch() -> None:
    assert words(recording_of("sunar"), "search_first_stage") == ["3 documents from retriever"] * 2
    first, second = said(recording_of("sunar"), "update_frontier")[:2]
    assert first.words == "batch 1: 2 from the first stage, 2 of 4 scored"
    # 0.9 and 0.8 are halved, because the answers make two sets; then 0.85 and 0.2 as they are
    assert first.blocks[:2] == [
        Words("2 semantic sets, scores × 0.50: same (1), other (1)", "warn"),
        Words("2 new among the best 2; 3 documents in the frontier"),
    ]
    assert cells(first.blocks[2]) == [["1", "0.450", "Tf1", ""], ["2", "0.400", "Tf2", ""]]
    assert second.words == "batch 2: 2 neighbours, 4 of 4 scored"
    assert second.blocks[0] == Words("1 semantic set: same (2)")
    assert cells(second.blocks[2]) == [["1", "0.850", "Tn1", "neighbour of Tf1"]]
    answers = said(recording_of("sunar"), "intermediate_answer")
    assert answers[0] == StepSummary("Ada", [Words("from Tn1; Tf1", "dim")])


def test_steps_that_update_frontier_sums_up_are_hidden_once_they_are_done() -> None:
    nodes = ("select_batch", "score_batch", "sample_answers", "count_semantic_sets", "record_hop")
    assert all(summary.hidden for node in nodes for summary in said(recording_of("sunar"), node))


def test_a_question_of_its_own_has_its_answer_below_alone() -> None:
    assert said(recording_of("neighbourhood"), "intermediate_answer") == [EMPTY]


def test_what_is_under_way() -> None:
    given = {"iteration": 1, "pool": "frontier", "batch_ids": ["c2", "c3"], "sampled_answers": ["x", "X.", "b", ""]}
    assert summary_of(step("score_batch", given)).words == "batch 2: 2 neighbours to score"
    assert summary_of(step("sample_answers", given, samples=4)).words == "4 answers from batch 2"
    assert summary_of(step("count_semantic_sets", given)).words == "2 distinct answers to compare"
    searching = step("search_first_stage", given)
    searching.progress = Progress(namespace=(), at=0.1, node="search_first_stage", what="reading", done=3, total=12)
    assert summary_of(searching) == StepSummary("reading", [Gauge(3, 12)])


def test_a_first_stage_that_finds_nothing() -> None:
    update = {"first_stage": [], "first_stage_name": "bm25"}
    assert summary_of(step("search_first_stage", {}, update)) == StepSummary("no documents")


def test_why_a_batch_has_no_penalty_is_told_where_it_happened() -> None:
    update = {"number_of_semantic_sets": None, "warnings": ["Batch 1: the judge failed, no penalty (gone)"]}
    told = summary_of(step("count_semantic_sets", {"iteration": 0}, update))
    assert told == StepSummary("batch 1", [Words("Batch 1: the judge failed, no penalty (gone)", "warn")])


def batch_told(scores: Sequence[float], penalty: str = "1/s", **given: Any) -> Sequence[Block]:
    """What `update_frontier` shows of a first batch with these scores."""
    documents = {f"c{i}": {"id": f"c{i}", "doc_id": "d", "title": f"T{i}", "text": "t"} for i in range(len(scores))}
    batch = [scored(chunk_id, score) for chunk_id, score in zip(documents, scores, strict=True)]
    given = {"iteration": 0, "pool": "first_stage", "batch_ids": list(documents), "scored": [], **given}
    given["calibration_scores"] = [1, 1, 1, 2]
    given["documents_by_id"] = documents
    settings = {"penalty": penalty, **({"penalty_file": "p.json"} if penalty == "conformal" else {})}
    return summary_of(step("update_frontier", given, {"scored": batch, "frontier": []}, **settings)).blocks


@pytest.mark.parametrize(
    ("penalty", "answers", "sets", "expected"),
    [
        ("1/s", ["b", "", "c", ""], 2, Words("2 semantic sets, scores × 0.50: b (1), c (1), 2 empty", "warn")),
        ("1/s", ["", ""], None, Words("no penalty: 2 empty", "warn")),
        ("1/s", ["x" * 99], 1, Words(f"1 semantic set: {'x' * 27}... (1)")),
        (
            "1/sqrt(s)",
            [*"bcdefgh", "h", "d", "D."],
            4,
            Words("4 semantic sets, scores × 0.50: d (3), h (2), b (1), c (1), e (1), 2 more", "warn"),
        ),
        ("conformal", ["b", "c"], 2, Words("2 semantic sets, scores × 0.40: b (1), c (1)", "warn")),
        ("conformal", ["b", "c"], 1, Words("1 semantic set: b (1), c (1)")),
    ],
)
def test_the_sampled_answers_of_a_batch(penalty: str, answers: list[str], sets: int | None, expected: Words) -> None:
    assert batch_told([0.5], penalty, sampled_answers=answers, number_of_semantic_sets=sets)[0] == expected


@pytest.mark.parametrize(
    ("s", "expected"),
    [
        (3, Words("3 contradictions, scores × 0.33: b (1)", "warn")),
        (1, Words("at most 1 contradiction: b (1)")),
    ],
)
def test_contradictions_are_called_so(s: int, expected: Words) -> None:
    given = {"iteration": 0, "pool": "first_stage", "batch_ids": [], "scored": [], "documents_by_id": {}}
    given |= {"sampled_answers": ["b"], "number_of_semantic_sets": s}
    update: dict[str, Any] = {"scored": [], "frontier": []}
    assert summary_of(step("update_frontier", given, update, asu="contradictions", judge="llm")).blocks[0] == expected


def test_without_a_penalty_nothing_is_said_of_answers() -> None:
    assert batch_told([0.5], "none")[0] == Words("1 new among the best 10; 0 documents in the frontier")


def test_of_many_documents_that_enter_the_best_some_are_shown() -> None:
    count = MOST_ENTERED + 3
    told = batch_told([0.9 - 0.1 * i for i in range(count)], "none")
    assert told[0] == Words(f"{count} new among the best 10; 0 documents in the frontier")
    assert cells(told[1])[-2:] == [["5", "0.500", "T4", ""], ["", "", "and 3 more", ""]]


def test_a_batch_without_a_document_among_the_best() -> None:
    given = {
        "iteration": 1, "pool": "frontier", "batch_ids": ["b"], "scored": [scored("a", 0.5)], "documents_by_id": {}
    }  # fmt: skip
    update = {"scored": [scored("b", 0.4, "frontier", "a")], "frontier": []}
    told = summary_of(step("update_frontier", given, update, k=1, penalty="none"))
    assert told.blocks == [Words("no documents new among the best 1; 0 documents in the frontier")]


def test_of_equal_scores_the_document_that_was_there_stays() -> None:
    before, batch = [scored("a", 0.5), scored("b", 0.4)], [scored("c", 0.4), scored("d", 0.5), scored("e", 0.1)]
    assert [(rank, document["chunk_id"]) for rank, document in entered_best(before, batch, 3)] == [(2, "d")]
    entered = [(rank, document["chunk_id"]) for rank, document in entered_best(before, batch, 9)]
    assert entered == [(2, "d"), (4, "c"), (5, "e")]


# the steps of SUNAR


def test_the_reasoning_path_is_told_step_by_step() -> None:
    assert words(recording_of("sunar"), "decompose") == [
        f"sub-question 1: {WHO}",
        f"sub-question 2: {WHERE}",
        "the path arrives at: the Wyre",
    ]
    assert words(recording_of("sunar"), "neighbourhood") == ["4 scored, 2 from the frontier: the budget is spent"] * 2
    evidence = [Words("Tf1; Tn1; Tb1; Tb2", "dim")]
    assert said(recording_of("sunar"), "rerank_all_evidence") == [
        StepSummary("4 documents of all sub-questions to read again", evidence)
    ]
    changed = StepSummary("the answer changes: the Lune", [Words("≠ the path's answer: the Wyre", "warn")])
    assert said(recording_of("sunar"), "reason_over_all_evidence") == [changed]


def sunar_step(node: str, given: dict[str, Any], update: dict[str, Any] | None) -> StepSummary:
    run = NodeRun("t", 0.0, given) if update is None else NodeRun("t", 0.0, given, 1.0, update)
    return summary_of(Step(1, "sunar", node, (), 0, 1, {}, SunarContext(), [run]))


def test_the_sub_questions_that_a_chain_still_has() -> None:
    chain = [{"question": question, "answer": ""} for question in (WHO, WHERE, "When?")]
    told = sunar_step("chain_of_query", {"hops": []}, {"query": WHO, "chain": chain})
    assert told == StepSummary(f"sub-question 1: {WHO}", [Words(f"then: {WHERE} · When?", "dim")])
    used_up = sunar_step("chain_of_query", {"hops": []}, {"query": None, "sequential_answer": "the Wyre"})
    assert used_up == StepSummary("the path arrives at: the Wyre", [])


def test_other_endings_of_a_path() -> None:
    stays = {"answer": "the Lune", "changed": False}
    given = {"sequential_answer": "The Lune."}
    assert sunar_step("reason_over_all_evidence", given, stays) == StepSummary("the answer stays: the Lune")
    kept = sunar_step("keep_sequential_answer", given, {"answer": "The Lune.", "changed": False})
    assert kept == StepSummary("the path's answer stands, no evidence is read again")
    cut = {"query": None, "sequential_answer": "", "warnings": ["The sub-questions are used up (max_hops 1)."]}
    told = sunar_step("decompose", {"hops": []}, cut)
    assert told == StepSummary("the path arrives at: (no answer)", [Words(cut["warnings"][0], "warn")])  # type: ignore[index]
    assert sunar_step("neighbourhood", {"query": WHO}, None) == StepSummary(WHO)


@pytest.mark.parametrize("graph", ["sunar", "neighbourhood"])
def test_every_node_has_a_summary_and_a_strange_state_does_no_harm(graph: str) -> None:
    nodes = RUNS[graph]().graph.get_graph().nodes.keys() - {"__start__", "__end__", *SHARED}
    assert presenter_of(graph).steps.keys() | presenter_of(graph).live_steps.keys() == nodes
    for node in nodes:
        for update in ({}, {"foreign": 1}, dict.fromkeys(("scored", "query", "answer", "evidence"))):
            for run in (NodeRun("t", 0.0, {}, 1.0, update), NodeRun("t", 0.0, {"asked": "q"})):
                assert isinstance(summary_of(Step(1, graph, node, (), 0, 1, {}, None, [run])), StepSummary)


# under the answer


@pytest.mark.parametrize("reason", get_args(StopReason))
def test_how_far_a_look_up_went_stands_under_its_answer(reason: StopReason) -> None:
    documents = [scored("a", 0.5), scored("b", 0.4), scored("c", 0.5, "frontier", "a")]
    uncertainty = {"signal": "mean number of semantic sets", "value": 1.5, "threshold": None}
    output = {"scored": documents, "stop_reason": reason, "uncertainty": uncertainty}
    assert outcome_of("neighbourhood", output, NeighbourhoodContext()) == [
        Words(f"Documents: 3 scored, 1 from the frontier; it ended because {STOP_REASONS[reason]}."),
        Words("Uncertainty: mean number of semantic sets 1.50."),
    ]


def test_the_path_stands_under_its_answer() -> None:
    output = recording_of("sunar").output or {}
    path = Pairs([(WHO, "Ada"), (WHERE, "Lancaster")], "The path, 2 sub-questions:", arrow=True)
    changed = Words("It arrived at: the Wyre. Reading its evidence again changed the answer.", "warn")
    # the first batch of the first look-up makes two sets, the three others one
    uncertainty = Words("Uncertainty: mean number of semantic sets 1.25.")
    assert outcome_of("sunar", output, SunarContext()) == [path, changed, uncertainty]
    stays = {**output, "changed": False, "uncertainty": None}
    assert outcome_of("sunar", stays, SunarContext()) == [path]


# the figures of a page


def test_the_path_the_answers_and_the_look_ups_of_sunar() -> None:
    path, answers, changed, *look_ups = figures_of(recording_of("sunar"))
    assert path == Pairs([(WHO, "Ada"), (WHERE, "Lancaster")], "Reasoning path", arrow=True)
    pairs = [("The path's answer", "the Wyre"), ("From all evidence, read again", "the Lune")]
    assert answers == Pairs(pairs, "Answers")
    assert changed == Words("Reading all evidence again changed the answer.", "warn")
    assert [(fold.title, fold.open) for fold in cast("list[Fold]", look_ups)] == [
        (f"Look-up 1: {WHO}", True),
        (f"Look-up 2: {WHERE}", False),
    ]
    sampled = [cast("Fold", fold).blocks[1] for fold in look_ups]
    assert [cast("Pairs", cast("Fold", fold).blocks[0]).pairs for fold in sampled] == [
        [("batch 1", "same (×1); other (×1)"), ("batch 2", "same (×2)")],
        [("batch 1", "same (×2)"), ("batch 2", "same (×2)")],
    ]


def test_the_batches_of_a_look_up() -> None:
    table, _, ending, drawing, scores = figures_of(recording_of("neighbourhood"))
    # R: f1, f2, then b1; their neighbours n1, n2, n3 in between; a batch with f2 has two semantic sets
    assert cells(table) == [
        ["1", "first stage", "2", "2", "2", "× 0.50", "0.900", "0.450", "2", "3"],
        ["2", "neighbours", "2", "4", "1", "× 1.00", "0.850", "0.850", "1", "1"],
        ["3", "first stage", "1", "5", "1", "× 1.00", "0.700", "0.700", "1", "2"],
        ["4", "neighbours", "1", "6", "1", "× 1.00", "0.400", "0.400", "0", "1"],
    ]
    assert ending == Words("It ended because the budget is spent.")
    (listed,) = cast("Fold", scores).blocks
    assert [(row[1], row[3], row[5], row[6]) for row in cells(listed)[:3]] == [
        ("Tn1", "Tf1", "0.850", "evidence"),
        ("Tb1", "", "0.700", "evidence"),
        ("Tf1", "", "0.450", ""),
    ]
    assert [row.marked for row in cast("Table", listed).rows] == [True, True, False, False, False, False]
    assert isinstance(drawing, Flow)


def test_the_drawing_leads_from_parents_to_neighbours() -> None:
    drawing = next(block for block in figures_of(recording_of("neighbourhood")) if isinstance(block, Flow))
    output = recording_of("neighbourhood").output or {}
    dots = {dot.id: dot for _, column in drawing.columns for dot in column}
    assert {name: dot.parent for name, dot in dots.items()} == {
        document["chunk_id"]: document["parent"] for document in output["scored"]
    }
    assert {name for name, dot in dots.items() if dot.strong} == {chunk["id"] for chunk in output["evidence"]}
    assert {name for name, dot in dots.items() if dot.leads} == {"f1", "n1", "b1"}, "n1 is a neighbour of f1"
    assert (dots["n1"].label, dots["n1"].tip) == ("Tn1", "Tn1: score 0.850 (raw 0.850), neighbour of Tf1")


def test_a_long_exploration_is_drawn_in_part() -> None:
    def batch(number: int) -> NodeRun:
        documents = [{**scored(f"d{number}-{i}", 0.5), "iteration": number} for i in range(50)]
        given = {"iteration": number, "pool": "first_stage", "number_of_semantic_sets": 1, "documents_by_id": {}}
        return NodeRun(f"t{number}", 0.0, given, 1.0, {"scored": documents, "frontier": []})

    batches = [Step(i, "neighbourhood", "update_frontier", (), 0, i, {}, None, [batch(i)]) for i in range(20)]
    drawing = next(block for block in look_up(batches, recording_of("neighbourhood")) if isinstance(block, Flow))
    assert [len(dots) for _, dots in drawing.columns] == [24] * 12
    assert drawing.columns[0][0] == "batch 1: first stage, 26 not drawn"
    assert drawing.note.endswith("The first 12 of 20 batches are drawn.")


def test_runs_that_ended_early() -> None:
    assert look_up([], recording_of("neighbourhood")) == [Words("It ended before any document was scored.")]
    early = recording_of("sunar", until=1)
    assert figures_of(early) == [Words("The run ended before anything was looked up.")]
    assert retrieved(early) == []
    nodes = [json.loads(line).get("node") for line in trace_of("sunar").splitlines()]
    assert retrieved(recording_of("sunar", until=nodes.index("record_hop"))) == [(WHO, "n1 f1", "n1 f1")]


# retrieval steps


def test_each_look_up_is_a_retrieval_step_and_so_is_the_meta_evidence() -> None:
    assert retrieved(recording_of("sunar")) == [
        (WHO, "n1 f1", "n1 f1"),
        (WHERE, "b1 b2", "n1 f1 b1 b2"),
        ("meta evidence", "", "f1 n1 b1 b2"),
    ]
    first, second, meta = retrieval_steps(recording_of("sunar"))
    # as many documents as are kept, in the order of the search and of the re-ranking
    assert (ids(first.first_stage), ids(first.reranked)) == ("f1 f2", "n1 f1")
    assert (ids(second.first_stage), ids(second.reranked)) == ("b1 b2", "b1 b2")
    assert (meta.first_stage, meta.reranked) == ((), ())


def test_a_look_up_alone_is_one_retrieval_step() -> None:
    assert retrieved(recording_of("neighbourhood")) == [(QUESTION, "n1 b1", "n1 b1")]


def test_a_look_up_that_finds_a_document_of_an_earlier_one() -> None:
    lines = trace_of("sunar").replace(b'"b1"', b'"f1"').splitlines(keepends=True)
    assert retrieved(assembled(Path("t.jsonl"), lines))[1] == (WHERE, "b2", "n1 f1 b2")


# time


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


@pytest.mark.alone
def test_a_run_with_5000_scored_documents_is_soon_a_page(tmp_path: Path) -> None:
    questions = [f"Question {i}?" for i in range(5)]
    replies = iter([*(f"Follow-up: {question}" for question in questions), "Final answer: the Wyre"])
    llm = Explorer(step=lambda question, lines, must: next(replies), samples=lambda query, names: ["same", "other"])
    names = [f"d{i}" for i in range(2000)]
    near = {name: [names[(7 * i + j) % len(names)] for j in range(1, 11)] for i, name in enumerate(names)}
    opened = Resources(
        llm,
        ScriptedEncoder(),
        ListedRetriever(lambda query: names[:100]),
        judge=ScriptedJudge(),
        reranker=ScriptedReranker(lambda query, name: (37 * int(name[1:]) % 1000 + 1) / 1002),
        graph=ScriptedGraph(near),
    )
    settings = SunarContext(budget=1000, batch_size=100, samples=2)
    record(Run(sunar_graph.build(opened).compile(name="sunar"), QUESTION, settings), tmp_path / "t.jsonl")
    render(read(tmp_path / "t.jsonl"))  # opens templates and graphs
    lines = (tmp_path / "t.jsonl").read_bytes().splitlines()
    reading = min(seconds(lambda: [json.loads(line) for line in lines]) for _ in range(3))
    pages: list[bytes] = []
    drawing = min(seconds(lambda: pages.append(render(read(tmp_path / "t.jsonl")))) for _ in range(2))
    assert drawing < 15 * reading, "it was 3 to 8 times, 1.5 to 2 seconds; in quadratic time it is far more"
    assert pages[0].count(b"All 1,000 scored documents") == 5
