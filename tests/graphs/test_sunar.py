"""SUNAR's machine through every branch, with scripted models: the path taken, the state, the calls."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from dubito.errors import ModelFault, ModelUnavailable
from dubito.graphs import sunar
from dubito.prompts import chain_of_query, decompose
from dubito.resources.resources import Resources
from dubito.state.sunar import SunarContext
from dubito.tests.graphs import sunar_reference as reference
from dubito.tests.scripted import (
    QUESTION,
    Explorer,
    ListedRetriever,
    ScriptedEncoder,
    ScriptedGraph,
    ScriptedJudge,
    ScriptedReranker,
    walk,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

THREAD: Any = {"configurable": {"thread_id": "1"}}

BEGUN = ["search_first_stage", "select_batch"]
BATCH = ["score_batch", "sample_answers", "count_semantic_sets", "update_frontier", "select_batch"]
HOP = ["neighbourhood", "record_hop", "decompose"]
READ_AGAIN = ["rerank_all_evidence", "reason_over_all_evidence"]


def looked_up(batches: int) -> list[str]:
    """The path of one look-up."""
    return ["prepare", *BEGUN, *BATCH * batches, "intermediate_answer"]


WHO, WHERE, WHEN = "Who is the founder?", "Where was Ada born?", "When was it?"
FOUND = {WHO: ["f1", "f2", "f3"], WHERE: ["b1", "b2", "f1"], WHEN: [], QUESTION: ["q1", "q2"]}
NEAR = {"f1": ["n1"], "b1": ["n2"]}
ANSWERS = {WHO: "Ada", WHERE: "Lancaster", WHEN: "1815", QUESTION: "the Lune"}
RELEVANCE = {"f1": 0.9, "f2": 0.8, "f3": 0.1, "n1": 0.85, "b1": 0.7, "b2": 0.6, "n2": 0.2, "q1": 0.5, "q2": 0.4}
FOR_THE_QUESTION = {"f1": 0.3, "n1": 0.6, "b1": 0.7, "b2": 0.2, "f2": 0.5, "q1": 0.5, "q2": 0.4}
"""The re-ranker's scores for the question itself, for which the documents of all sub-questions are ranked again."""


def relevance(query: str, name: str) -> float:
    return {**RELEVANCE, **FOR_THE_QUESTION}[name] if query == QUESTION else RELEVANCE[name]


def steps(*replies: str, last: str = "Final answer: at last") -> Callable[[str, Sequence[str], bool], str]:
    """One reply after another; `last` when the model must answer."""
    left = iter(replies)
    return lambda question, lines, must: last if must else next(left)


def asks(*questions: str) -> list[str]:
    return [f"Follow-up: {question}" for question in questions]


TWO_STEPS = (*asks(WHO, WHERE), "Final answer: the Wyre")


@dataclass
class Ran:
    """A finished run and its models."""

    state: dict[str, Any]
    path: list[str]
    inner: list[list[str]]
    llm: Explorer
    judge: ScriptedJudge
    reranker: ScriptedReranker
    retriever: ListedRetriever

    @property
    def hops(self) -> list[dict[str, Any]]:
        hops: list[dict[str, Any]] = self.state["hops"]
        return hops

    @property
    def questions(self) -> list[str]:
        return [hop["question"] for hop in self.hops]

    @property
    def evidence(self) -> list[str]:
        return [chunk["id"] for chunk in self.state["evidence"]]


def machine(
    llm: Explorer,
    judge: ScriptedJudge | None = None,
    reranker: ScriptedReranker | None = None,
    retriever: ListedRetriever | None = None,
    near: Mapping[str, Sequence[str]] = NEAR,
    **compile_with: Any,
) -> Any:
    opened = Resources(
        llm,
        ScriptedEncoder(),
        retriever or ListedRetriever(lambda query: FOUND[query]),
        judge=judge or ScriptedJudge(),
        reranker=reranker or ScriptedReranker(relevance),
        graph=ScriptedGraph(near),
    )
    return sunar.build(opened).compile(name="sunar", **compile_with)


def explorer(*replies: str, **more: Any) -> Explorer:
    """A model whose steps of the decomposition are these."""
    more.setdefault("reason", lambda question, line, names: "the Lune")
    last = {"last": more.pop("last")} if "last" in more else {}
    return Explorer(step=steps(*replies, **last), answer=lambda query, names: ANSWERS[query], **more)


async def run(llm: Explorer, judge: ScriptedJudge | None = None, **context: Any) -> Ran:
    judge, reranker = judge or ScriptedJudge(), ScriptedReranker(relevance)
    retriever = ListedRetriever(lambda query: FOUND[query])
    graph = machine(llm, judge, reranker, retriever)
    state, path, inner = await walk(graph, {"question": QUESTION}, SunarContext.unchecked({"samples": 4, **context}))
    assert json.loads(json.dumps(state)) == state
    return Ran(state, path, inner, llm, judge, reranker, retriever)


# --- the path ---


async def test_two_sub_questions() -> None:
    ran = await run(explorer(*TWO_STEPS))
    assert ran.path == ["prepare", "decompose", *HOP * 2, *READ_AGAIN]
    assert ran.inner == [looked_up(2), looked_up(2)]
    assert [(hop["question"], hop["answer"]) for hop in ran.hops] == [(WHO, "Ada"), (WHERE, "Lancaster")]
    assert [hop["evidence_ids"] for hop in ran.hops] == [["f1", "n1", "f2", "f3"], ["f1", "n1", "b1", "b2", "n2"]]
    assert [hop["stop_reason"] for hop in ran.hops] == ["exhausted", "exhausted"]
    assert [[one["chunk_id"] for one in hop["scored"]] for hop in ran.hops] == [
        ["f1", "f2", "f3", "n1"],
        ["b1", "b2", "f1", "n1", "n2"],
    ]
    assert (ran.state["sequential_answer"], ran.state["answer"]) == ("the Wyre", "the Lune")
    assert ran.state["warnings"] == []


async def test_the_model_sees_the_path_so_far() -> None:
    ran = await run(explorer(*TWO_STEPS))
    assert ran.llm.of("step") == [
        (QUESTION, []),
        (QUESTION, [f"{WHO} Ada"]),
        (QUESTION, [f"{WHO} Ada", f"{WHERE} Lancaster"]),
    ]


async def test_retrieval_reranker_judge_and_answer_are_about_the_sub_question() -> None:
    judge, about = ScriptedJudge(), []
    judged = judge.judge

    async def judge_it(question: str, pairs: Sequence[tuple[str, str]]) -> Any:
        about.append(question)
        return await judged(question, pairs)

    judge.judge = judge_it  # type: ignore[method-assign]
    ran = await run(explorer(*TWO_STEPS, samples=lambda query, names: ["one", "two"]), judge)
    assert ran.retriever.asked == [WHO, WHERE]
    assert [query for query, _ in ran.reranker.asked] == [WHO, WHO, WHERE, WHERE, QUESTION]
    assert about == [WHO, WHO, WHERE, WHERE]
    assert [query for query, _ in ran.llm.of("sample")] == [WHO, WHO, WHERE, WHERE]
    assert ran.llm.of("answer") == [(WHO, ["f1", "n1", "f2", "f3"]), (WHERE, ["f1", "n1", "b1", "b2", "n2"])]
    assert [query for query, _ in ran.llm.of("reason")] == [QUESTION]


@pytest.mark.parametrize("penalty", ["1/s", "none"])
async def test_answers_that_differ_change_a_hops_evidence(penalty: str) -> None:
    # the answers sampled from f1's batch differ
    llm = explorer(*asks(WHO), "Final answer: Ada", samples=lambda query, names: names if "f1" in names else ["same"])
    ran = await run(llm, penalty=penalty)
    ranked = ["n1", "f1", "f2", "f3"] if penalty == "1/s" else ["f1", "n1", "f2", "f3"]
    assert ran.hops[0]["evidence_ids"] == ranked
    assert {one["number_of_semantic_sets"] for one in ran.hops[0]["scored"]} == ({3, 1} if penalty == "1/s" else {None})
    assert ran.llm.asked.count("sample") == (2 if penalty == "1/s" else 0)


@pytest.mark.parametrize("meta_evidence", [True, False])
async def test_uncertainty_is_the_mean_over_the_batches_of_all_look_ups(meta_evidence: bool) -> None:
    llm = explorer(*TWO_STEPS, samples=lambda query, names: ["one", "two", "three"] if query == WHO else ["one"])
    ran = await run(llm, batch_size=1, meta_evidence=meta_evidence)
    assert [len(path) for path in ran.inner] == [len(looked_up(4)), len(looked_up(5))]
    value = (4 * 3 + 5 * 1) / 9
    assert ran.state["uncertainty"] == {"signal": "mean number of semantic sets", "value": value, "threshold": None}


async def test_without_a_penalty_the_uncertainty_is_not_known() -> None:
    ran = await run(explorer(*TWO_STEPS), penalty="none")
    assert ran.state["uncertainty"] == {"signal": "mean number of semantic sets", "value": None, "threshold": None}


async def test_answers_before_anything_was_looked_up() -> None:
    ran = await run(explorer("Final answer: the Wyre", "Final answer: the Ribble"))
    assert ran.path == ["prepare", "decompose", *HOP, *READ_AGAIN]
    assert ran.questions == [QUESTION]
    assert ran.hops[0]["answer"] == "the Lune"
    assert ran.state["sequential_answer"] == "the Ribble"
    assert ran.state["warnings"] == []


@pytest.mark.parametrize("again", [WHO, "who is founder"])
async def test_a_repeated_sub_question_ends_the_path(again: str) -> None:
    ran = await run(explorer(*asks(WHO, again)))
    assert ran.path == ["prepare", "decompose", *HOP, *READ_AGAIN]
    assert ran.questions == [WHO]
    assert ran.state["sequential_answer"] == "at last"
    assert ran.state["warnings"] == ["The decomposition asked the same sub-question again."]
    assert ran.llm.asked.count("step") == 3


@pytest.mark.parametrize("max_hops", [1, 2])
async def test_the_sub_questions_are_used_up(max_hops: int) -> None:
    ran = await run(explorer(*asks(WHO, WHERE, WHEN)), max_hops=max_hops)
    assert ran.path == ["prepare", "decompose", *HOP * max_hops, *READ_AGAIN]
    assert ran.questions == [WHO, WHERE][:max_hops]
    assert ran.state["sequential_answer"] == "at last"
    assert ran.state["warnings"] == [f"The sub-questions are used up (max_hops {max_hops})."]
    assert ran.llm.asked.count("step") == max_hops + 1


@pytest.mark.parametrize("last", ["Follow-up: but who?", "I cannot tell.", "Final answer:  "])
async def test_without_a_final_answer_the_last_hops_answer_stands(last: str) -> None:
    ran = await run(explorer(*asks(WHO, WHERE), last=last), max_hops=2)
    assert ran.state["sequential_answer"] == "Lancaster"
    assert ran.llm.asked.count("step") == 2 + (1 if last.startswith("Follow") else 2)


async def test_a_first_step_that_cannot_be_read_twice() -> None:
    ran = await run(explorer("Let us think.", "We must think.", "Final answer: Ada"))
    assert ran.path == ["prepare", "decompose", *HOP, *READ_AGAIN]
    assert (ran.questions, ran.state["sequential_answer"]) == ([QUESTION], "Ada")
    [warning] = ran.state["warnings"]
    assert warning.startswith("The decomposition could not be read (")
    assert warning.endswith("; the question itself is looked up.")


async def test_a_later_step_that_cannot_be_read_twice_ends_the_path() -> None:
    ran = await run(explorer(*asks(WHO), "Let us think.", "We must think."))
    assert ran.path == ["prepare", "decompose", *HOP, *READ_AGAIN]
    assert (ran.questions, ran.state["sequential_answer"]) == ([WHO], "at last")
    [warning] = ran.state["warnings"]
    assert warning.startswith("The decomposition could not be read (")
    assert "looked up" not in warning


async def test_a_later_step_that_cannot_be_read_and_no_answer_either() -> None:
    ran = await run(explorer(*asks(WHO), "Let us think.", "We must think.", last="I do not know."))
    assert ran.state["sequential_answer"] == "Ada"
    assert ran.llm.asked.count("step") == 1 + 2 + 2


async def test_a_step_that_is_read_the_second_time() -> None:
    ran = await run(explorer("Who is it?", *TWO_STEPS))
    assert (ran.questions, ran.state["warnings"]) == ([WHO, WHERE], [])
    assert ran.llm.asked.count("step") == 4


async def test_a_model_that_can_is_kept_to_a_line_and_at_the_end_to_an_answer() -> None:
    ran = await run(explorer(*asks(WHO), capabilities=frozenset({"pattern", "logprobs"})), max_hops=1)
    assert ran.llm.patterns == [decompose.pattern(), decompose.pattern(must_answer=True)]
    assert ran.state["sequential_answer"] == "at last"


async def test_an_empty_final_answer_is_asked_for_again() -> None:
    ran = await run(explorer(*asks(WHO), "Final answer: ", "Final answer: Ada"))
    assert (ran.questions, ran.state["sequential_answer"], ran.state["warnings"]) == ([WHO], "Ada", [])


async def test_a_sub_question_that_finds_nothing() -> None:
    ran = await run(explorer(*asks(WHEN, WHO), "Final answer: Ada"))
    assert ran.inner == [looked_up(0), looked_up(2)]
    assert (ran.hops[0]["evidence_ids"], ran.hops[0]["scored"], ran.hops[0]["stop_reason"]) == ([], [], "exhausted")
    assert ran.state["warnings"] == ["The first stage found no documents; the answer is made without evidence."]
    assert sorted(ran.evidence) == ["f1", "n1"]


@pytest.mark.parametrize("reads", [True, False])
async def test_no_sub_question_finds_anything(reads: bool) -> None:
    ran = await run(explorer(*asks(WHEN), "Final answer: 1815"), meta_evidence=reads)
    assert ran.path == ["prepare", "decompose", *HOP, *(READ_AGAIN if reads else ["keep_sequential_answer"])]
    assert (ran.evidence, ran.reranker.asked) == ([], [])
    assert ran.state["answer"] == ("the Lune" if reads else "1815")


# --- SearChain ---


def chains(*replies: str) -> Callable[[str, Sequence[str]], str]:
    left = iter(replies)
    return lambda question, lines: next(left)


def chained(*replies: str, **more: Any) -> Explorer:
    return explorer(chain=chains(*replies), **more)


SEARCHAIN_HOP = ["neighbourhood", "record_hop", "chain_of_query"]
UNKNOWN = "Answer: unknown"


def node(question: str, answer: str) -> str:
    return f"Query: {question}\nAnswer: {answer}\n"


async def test_a_chain_whose_answers_the_look_ups_confirm_is_written_once() -> None:
    # the look-ups answer Ada and Lancaster, which occur in the model's own answers
    llm = chained(node(WHO, "the great Ada") + node(WHERE, "in Lancaster.") + "Final answer: the Wyre")
    ran = await run(llm, decomposition="searchain")
    assert ran.path == ["prepare", "chain_of_query", *SEARCHAIN_HOP * 2, *READ_AGAIN]
    assert ran.llm.of("chain") == [(QUESTION, [])]
    assert [(hop["question"], hop["answer"]) for hop in ran.hops] == [(WHO, "Ada"), (WHERE, "Lancaster")]
    assert (ran.state["sequential_answer"], ran.state["warnings"]) == ("the Wyre", [])
    assert "step" not in ran.llm.asked


@pytest.mark.parametrize("own", ["Eve", "Adam", "unknown"])
async def test_after_a_wrong_or_missing_answer_the_rest_is_written_anew(own: str) -> None:
    first = node(WHO, own) + (node(WHEN, "1815") + "Final answer: no" if own != "unknown" else "")
    llm = chained(first, node(WHO, "Ada") + node(WHERE, "Lancaster") + "Final answer: the Wyre")
    ran = await run(llm, decomposition="searchain")
    assert ran.llm.of("chain") == [(QUESTION, []), (QUESTION, [f"{WHO} Ada"])]
    assert ran.questions == [WHO, WHERE], "what was looked up is not looked up again"
    assert ran.state["sequential_answer"] == "the Wyre"


@pytest.mark.parametrize("found", [" ", "unknown", "The passages do not say."])
async def test_a_look_up_that_finds_no_answer_leaves_the_models_own(found: str) -> None:
    llm = chained(node(WHEN, "1815") + "Final answer: 1815")
    llm.answer = lambda query, names: found
    ran = await run(llm, decomposition="searchain")
    assert (ran.questions, ran.state["sequential_answer"]) == ([WHEN], "1815")
    assert ran.llm.asked.count("chain") == 1


@pytest.mark.parametrize(
    ("replies", "max_hops", "questions", "warning"),
    [
        ([node(WHO, "Ada") + node(WHERE, "Lancaster") + "Final answer: x"], 1, [WHO], "used up (max_hops 1)"),
        ([node(WHO, "Eve") + "Final answer: x"], 1, [WHO], "used up (max_hops 1)"),
        ([node(WHO, "Eve") + "Final answer: x", node(WHO, "unknown")], 6, [WHO], "the same sub-question again"),
        ([node(WHO, "unknown"), "Who?", "Who?"], 6, [WHO], "could not be read"),
    ],
)
async def test_a_chain_that_cannot_go_on_ends_the_path(
    replies: list[str], max_hops: int, questions: list[str], warning: str
) -> None:
    ran = await run(chained(*replies), decomposition="searchain", max_hops=max_hops)
    assert (ran.questions, ran.state["sequential_answer"]) == (questions, "at last")
    [told] = ran.state["warnings"]
    assert warning in told


@pytest.mark.parametrize("replies", [["Final answer: Ada"] * 2, ["?", "?", "Final answer: Ada"]])
async def test_without_a_chain_the_question_itself_is_looked_up(replies: list[str]) -> None:
    ran = await run(chained(*replies), decomposition="searchain")
    assert (ran.questions, ran.state["sequential_answer"]) == ([QUESTION], "Ada")
    assert [lines for _, lines in ran.llm.of("chain")][-1] == [f"{QUESTION} the Lune"]


async def test_a_model_that_can_is_kept_to_a_chain() -> None:
    llm = chained(node(WHO, "Ada") + "Final answer: Ada", capabilities=frozenset({"pattern", "logprobs"}))
    await run(llm, decomposition="searchain", max_hops=2)
    assert llm.patterns == [chain_of_query.pattern(2)]


# --- the evidence read again ---


async def test_meta_evidence_is_ranked_for_the_question_itself() -> None:
    ran = await run(explorer(*TWO_STEPS), documents_per_hop=3)
    # of WHO f1, n1, f2; of WHERE f1, n1, b1: each once
    assert ran.reranker.asked[-1] == (QUESTION, ["f1", "n1", "f2", "b1"])
    assert ran.evidence == ["b1", "n1", "f2", "f1"]
    assert [chunk["score"] for chunk in ran.state["evidence"]] == [0.7, 0.6, 0.5, 0.3]
    assert ran.llm.of("reason") == [(QUESTION, ["b1", "n1", "f2", "f1"])]


async def test_meta_evidence_is_two_documents_of_each_sub_question_by_default() -> None:
    ran = await run(explorer(*asks(WHO, QUESTION), "Final answer: Ada"))
    assert ran.reranker.asked[-1] == (QUESTION, ["f1", "n1", "q1", "q2"])


@pytest.mark.parametrize("meta_documents", [1, 2, 10])
async def test_the_meta_evidences_size(meta_documents: int) -> None:
    ran = await run(explorer(*TWO_STEPS), documents_per_hop=3, meta_documents=meta_documents)
    assert ran.evidence == ["b1", "n1", "f2", "f1"][:meta_documents]


async def test_the_reasoner_sees_the_path_and_the_first_answer() -> None:
    told: list[str] = []

    def reason(question: str, line: str, names: Sequence[str]) -> str:
        told.append(line)
        return "the Lune"

    await run(explorer(*TWO_STEPS, reason=reason))
    [line] = told
    assert line.splitlines()[:3] == [f"- {WHO} Ada", f"- {WHERE} Lancaster", "First answer: the Wyre"]


@pytest.mark.parametrize(
    ("says", "answer", "changed"),
    [("the Lune", "the Lune", True), ("The Wyre.", "The Wyre.", False), (" ", "the Wyre", False)],
    ids=["overturned", "confirmed", "empty"],
)
async def test_reading_again(says: str, answer: str, changed: bool) -> None:
    ran = await run(explorer(*TWO_STEPS, reason=lambda question, line, names: says))
    assert (ran.state["answer"], ran.state["changed"]) == (answer, changed)
    assert ran.state["sequential_answer"] == "the Wyre"
    assert ran.state["warnings"] == ([] if says.strip() else ["The model's reply gave no answer: it is empty."])
    assert ran.llm.asked.count("reason") == (1 if says.strip() else 2)


async def test_without_reading_again() -> None:
    ran = await run(explorer(*TWO_STEPS), meta_evidence=False)
    assert ran.path == ["prepare", "decompose", *HOP * 2, "keep_sequential_answer"]
    assert (ran.state["answer"], ran.state["sequential_answer"], ran.state["changed"]) == (
        "the Wyre",
        "the Wyre",
        False,
    )
    assert ran.evidence == ran.hops[-1]["evidence_ids"] == ["f1", "n1", "b1", "b2", "n2"]
    assert "reason" not in ran.llm.asked
    assert [query for query, _ in ran.reranker.asked] == [WHO, WHO, WHERE, WHERE]


async def test_neighbourhood_alone() -> None:
    ran = await run(explorer(*TWO_STEPS), meta_evidence=False, penalty="none")
    assert ran.llm.asked == ["step", "answer", "step", "answer", "step"]
    assert (
        ran.inner
        == [
            [
                "prepare",
                "search_first_stage",
                "select_batch",
                *["score_batch", "update_frontier", "select_batch"] * 2,
                "intermediate_answer",
            ]
        ]
        * 2
    )
    assert ran.judge.batches == []


# --- faults ---


@pytest.mark.parametrize("kind", ["sample", "answer"])
async def test_a_lasting_fault_is_not_retried_by_both_graphs(fast_retries: None, kind: str) -> None:
    llm = explorer(*TWO_STEPS)
    complete = llm.complete

    async def failing(messages: Any, sampling: Any) -> Any:
        if llm._kind(messages, sampling) == kind:
            llm.asked.append(kind)
            raise ModelFault("scripted", "connection refused")
        return await complete(messages, sampling)

    llm.complete = failing  # type: ignore[method-assign]
    with pytest.raises(ModelUnavailable, match="scripted did not answer after 4 attempts"):
        await run(llm)
    assert llm.asked.count(kind) == 4


# --- in other programs ---


# --- against the reference ---

T = TypeVar("T")
ASKED = (WHO, WHERE, WHEN, "What is it?")
NOTHING = "(nothing was found)"


@dataclass(frozen=True)
class World:
    """A random world: what is found, scored, asked and answered follows from the seed and from what is shown."""

    seed: int

    def pick(self, options: Sequence[T], *shown: object) -> T:
        return random.Random(f"{self.seed} {shown}").choice(options)

    @property
    def near(self) -> dict[str, list[str]]:
        names = [f"d{number}" for number in range(16)]
        return {name: self.pick([names[:2], names[2:5], names[5:9], names[9:], []], "near", name) for name in names}

    def found(self, query: str) -> list[str]:
        names = [f"d{number}" for number in range(16)]
        return random.Random(f"{self.seed} found {query}").sample(names, self.pick([0, 1, 4, 9], "count", query))

    def score(self, query: str, name: str) -> float:
        return float(self.pick([number / 37 for number in range(1, 37)], "score", query, name))

    def samples(self, query: str, best: str) -> list[str]:
        return self.pick([["one"], ["one", "two"], ["one", "two", "three"], [""]], "samples", query, best)

    def answer(self, query: str, names: Sequence[str]) -> str:
        return self.pick(["Ada", "Ida", "Oda", ""], "answer", query, *names)

    def step(self, lines: Sequence[str]) -> tuple[bool, str]:
        return self.pick([*((False, one) for one in ASKED), (True, "the Lune"), (True, "the Wyre")], "step", *lines)

    def chain(self, lines: Sequence[str]) -> tuple[list[tuple[str, str | None]], str | None]:
        nodes: list[tuple[str, str | None]] = []
        for number in range(self.pick([0, 1, 2, 3], "nodes", *lines)):
            own = self.pick(["Ada", "Ida of Ada", "Oda", None], "own", number, *lines)
            nodes.append((self.pick(ASKED, "query", number, *lines), own))
            if own is None:
                return nodes, None
        return nodes, self.pick(["the Lune", None] if nodes else ["the Lune"], "final", *lines)

    def last(self, lines: Sequence[str]) -> str:
        return self.pick(["at last", ""], "last", *lines)

    def reason(self, first: str, names: Sequence[str]) -> str:
        return self.pick(["the Lune", "the Wyre", ""], "reason", first, *names)


def lines_of(path: Sequence[reference.Line]) -> list[str]:
    return [f"{question} {answer or NOTHING}" for question, answer in path]


def written(chain: tuple[list[tuple[str, str | None]], str | None]) -> str:
    nodes, final = chain
    text = "".join(node(question, own or "unknown") for question, own in nodes)
    return text if final is None else f"{text}Final answer: {final}"


def by_the_reference(world: World, chosen: reference.Settings, **options: Any) -> reference.Path:
    def look_up(query: str) -> reference.Outcome:
        raw = {f"d{number}": world.score(query, f"d{number}") for number in range(16)}

        def sets_of(number: int, batch: list[str]) -> int:
            samples = world.samples(query, max(batch, key=lambda name: raw[name]))
            return 0 if samples == [""] else len(samples)

        return reference.nar(world.found(query), raw, world.near, sets_of, chosen)

    models = reference.Models(
        step=lambda path: world.step(lines_of(path)),
        chain=lambda path: world.chain(lines_of(path)),
        last=lambda path: world.last(lines_of(path)),
        look_up=look_up,
        answer=world.answer,
        relevance=lambda name: world.score(QUESTION, name),
        reason=lambda path, first, names: world.reason(first or "(none)", names),
    )
    return reference.sunar(QUESTION, models, **options)


def in_words(world: World) -> Explorer:
    def step(question: str, lines: Sequence[str], must: bool) -> str:
        if must:
            return f"Final answer: {world.last(lines)}"
        is_answer, text = world.step(lines)
        return f"{'Final answer' if is_answer else 'Follow-up'}: {text}"

    def reason(question: str, line: str, names: Sequence[str]) -> str:
        [first] = [text for text in line.splitlines() if text.startswith("First answer: ")]
        return world.reason(first.removeprefix("First answer: "), names)

    return Explorer(
        step=step,
        chain=lambda question, lines: written(world.chain(lines)),
        samples=lambda query, names: world.samples(query, names[0]),
        answer=world.answer,
        reason=reason,
    )


@st.composite
def choices(draw: st.DrawFn) -> tuple[reference.Settings, dict[str, Any]]:
    chosen = reference.Settings(
        budget=draw(st.sampled_from([5, 100])),
        batch=draw(st.sampled_from([2, 16])),
        evidence=draw(st.sampled_from([3, 10])),
        penalty=draw(st.sampled_from(["1/s", "none"])),
        frontier_score=draw(st.sampled_from(["penalised", "raw"])),
    )
    return chosen, {
        "searchain": draw(st.booleans()),
        "max_hops": draw(st.sampled_from([1, 2, 6])),
        "per_hop": draw(st.sampled_from([1, 2])),
        "meta_documents": draw(st.sampled_from([2, 10])),
    }


@example(
    World(85),  # the last look-up's question stands in the chain twice
    (
        reference.Settings(budget=100, batch=2, evidence=3, penalty="none"),
        {"searchain": True, "max_hops": 2, "per_hop": 1, "meta_documents": 2},
    ),
)
@settings(max_examples=30, database=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1).map(World), choices())
async def test_it_computes_the_same_as_the_reference(
    world: World, choice: tuple[reference.Settings, dict[str, Any]]
) -> None:
    chosen, options = choice
    expected = by_the_reference(world, chosen, **options)
    graph = machine(
        in_words(world), reranker=ScriptedReranker(world.score), retriever=ListedRetriever(world.found), near=world.near
    )
    context = {
        "budget": chosen.budget,
        "batch_size": chosen.batch,
        "k": chosen.evidence,
        "penalty": chosen.penalty,
        "frontier_score": chosen.frontier_score,
        "samples": 4,
        "decomposition": "searchain" if options["searchain"] else "self_ask",
        "max_hops": options["max_hops"],
        "documents_per_hop": options["per_hop"],
        "meta_documents": options["meta_documents"],
    }
    state = await graph.ainvoke({"question": QUESTION}, context=SunarContext.unchecked(context))
    assert [(hop["question"], hop["answer"]) for hop in state["hops"]] == expected.lines
    for hop, look_up in zip(state["hops"], expected.look_ups, strict=True):
        assert [one["chunk_id"] for one in hop["scored"]] == [one.id for one in look_up.scored]
        assert hop["evidence_ids"] == [one.id for one in look_up.best]
    assert state["sequential_answer"] == expected.sequential
    assert [chunk["id"] for chunk in state["evidence"]] == expected.meta_evidence
    assert state["answer"] == expected.answer


def test_the_random_worlds_reach_every_kind_of_path() -> None:
    reached: Counter[str] = Counter()

    @settings(max_examples=150, derandomize=True, database=None)
    @given(st.integers(0, 2**32 - 1).map(World), choices())
    def tell(world: World, choice: tuple[reference.Settings, dict[str, Any]]) -> None:
        chosen, options = choice
        path = by_the_reference(world, chosen, **options)
        kind = "searchain" if options["searchain"] else "self-ask"
        reached[f"{kind} of several hops"] += len(path.lines) > 1
        reached[f"{kind} about the question itself"] += path.lines[0][0] == QUESTION
        reached[f"{kind} to an answer"] += path.sequential in {"the Lune", "the Wyre"}
        reached[f"{kind} to the last request"] += path.sequential == "at last"
        reached["changed"] += path.answer != path.sequential
        reached["from the frontier"] += any(one.pool == "frontier" for out in path.look_ups for one in out.best)

    tell()
    assert len(reached) == 10
    assert min(reached.values()) >= 5, reached
