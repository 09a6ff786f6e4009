"""DENSE's machine through every branch, with scripted models: the path taken, the state, the calls."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.errors import ContextOverflow, ModelFault, ModelUnavailable, UserFault
from dubito.graphs import dense
from dubito.models.interfaces import Completion, Message, Reply, Sampling
from dubito.resources import resources as opened_by_name
from dubito.resources.resources import Resources
from dubito.state.calibration import AnswerCalibration, identity, settings_of
from dubito.state.dense import DenseContext
from dubito.state.escalate import EscalateContext
from dubito.tests.graphs import dense_reference as reference
from dubito.tests.scripted import (
    CERTIFIED,
    QUERY,
    QUESTION,
    THE_CORPUS,
    VECTORS,
    KnownCorpus,
    Reader,
    ScriptedEncoder,
    ScriptedJudge,
    ScriptedRetriever,
    walk,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver

FIVE = ["one", "two", "three", "four", "five"]
THREAD: Any = {"configurable": {"thread_id": "1"}}


def answers(by_text: dict[str, str], otherwise: str = "the Lune") -> Callable[[Sequence[str]], str]:
    """Responds with the entry of the first text of a context that has one."""
    return lambda texts: next((by_text[text] for text in texts if text in by_text), otherwise)


def opened(llm: Reader, judge: ScriptedJudge | None = None, texts: Sequence[str] = (), count: int = 7) -> Resources:
    """The models, and a retriever over the first `count` of seven chunks."""
    retriever = ScriptedRetriever(QUERY, VECTORS[:count], texts)
    return Resources(llm=llm, judge=judge or ScriptedJudge(), retriever=retriever)


def machine(llm: Reader, judge: ScriptedJudge | None = None, **compile_with: Any) -> Any:
    return dense.build(opened(llm, judge)).compile(name="dense", **compile_with)


async def measure(
    llm: Reader, chunks: Any = None, judge: ScriptedJudge | None = None, **context: Any
) -> tuple[dict[str, Any], list[str]]:
    """The final state and the path; chunks None: those of the corpus."""
    graph_input = {"question": QUESTION} if chunks is None else {"question": QUESTION, "chunks": chunks}
    state, path, _ = await walk(machine(llm, judge), graph_input, context)
    return state, path


async def test_nothing_is_certified_of_an_answer_from_given_chunks(tmp_path: Path) -> None:
    context = DenseContext(k=3, judge="embedded", check_determinism=False)
    made = {"technique": "dense", "model": identity(context.llm), "settings": settings_of(context)}
    calibration = AnswerCalibration(**made, threshold=0.6, **CERTIFIED, corpus=THE_CORPUS)
    await asyncio.to_thread(calibration.save, tmp_path / "c.json")
    llm, retriever = Reader(name="embedded"), ScriptedRetriever(QUERY, VECTORS[:5])
    resources = KnownCorpus(llm, judge=ScriptedJudge(), retriever=retriever)
    graph: Any = dense.build(resources).compile(name="dense")
    settings = {"k": 3, "judge": "embedded", "check_determinism": False, "calibration": str(tmp_path / "c.json")}
    of_the_corpus = await graph.ainvoke({"question": QUESTION}, context=settings)
    assert of_the_corpus["certificate"]["holds"]
    given = await graph.ainvoke({"question": QUESTION, "chunks": ["mine"]}, context=settings)
    assert given["answer"], "it is certain enough"
    assert not given["certificate"]["holds"]
    assert given["certificate"]["sentence"].startswith("The chunks were given with the question")


# --- the path and the figures ---


async def test_all_answers_agree() -> None:
    llm, judge = Reader(), ScriptedJudge()
    state, path = await measure(llm, FIVE, judge)
    assert path == ["prepare", "rephrase*5", "contexts", "repeat+respond*6", "entail", "measure_dse"]
    assert (state["answer"], state["dse"], state["certain"]) == ("the Lune", 0, True)
    assert state["responses"] == ["the Lune"] * 6
    assert state["rephrasings"] == [f"other {text}" for text in FIVE]
    assert state["link"] == [[1.0] * 6] * 6
    assert state["shares"] == [0.0] * 5
    assert state["warnings"] == []
    assert judge.batches == []
    assert [chunk["text"] for chunk in state["evidence"]] == FIVE


async def test_the_contexts_are_the_original_and_single_edits() -> None:
    llm = Reader()
    await measure(llm, FIVE, check_determinism=False)
    edits = [[f"other {text}" if i == j else text for j, text in enumerate(FIVE)] for i in range(5)]
    assert sorted(llm.answered) == sorted([FIVE, *edits])
    assert sorted(llm.rephrased) == sorted(FIVE)


async def test_one_dissenter() -> None:
    state, _ = await measure(Reader(answer=answers({"other two": "the Thames"})), FIVE)
    assert state["dse"] == pytest.approx(0.4506, abs=5e-5)
    assert state["certain"] is False
    assert state["answer"] == "the Lune"
    assert state["responses"][2] == "the Thames"
    assert [row[0] for row in state["link"]] == [1, 1, 0, 1, 1, 1]
    assert state["link"][2] == [0, 0, 1, 0, 0, 0]
    assert state["shares"] == pytest.approx([math.log(6 / 5) / 6, math.log(6) / 6, *[math.log(6 / 5) / 6] * 3])


@pytest.mark.parametrize("first", ["the Lune", "the river Lune"])
async def test_half_a_link_either_way(first: str) -> None:
    llm = Reader(answer=answers({"other two": "the river Lune"}))
    judge = ScriptedJudge(lambda a, b: a == first)
    state, _ = await measure(llm, FIVE, judge)
    assert state["dse"] == pytest.approx(0.1623, abs=5e-5)
    assert state["certain"] is True
    assert state["link"][2] == [0.5, 0.5, 1, 0.5, 0.5, 0.5]


async def test_all_differ() -> None:
    llm = Reader(answer=answers({f"other {text}": text for text in FIVE}))
    state, _ = await measure(llm, FIVE)
    assert state["dse"] == pytest.approx(math.log(6))
    assert state["link"] == np.eye(6).tolist()


@pytest.mark.parametrize(("threshold", "certain"), [(0.4507, True), (0.4505, False)])
async def test_the_threshold_is_a_setting(threshold: float, certain: bool) -> None:
    llm = Reader(answer=answers({"other two": "the Thames"}))
    state, _ = await measure(llm, FIVE, dse_threshold=threshold)
    assert state["certain"] is certain
    assert state["uncertainty"] == {"signal": "DSE", "value": state["dse"], "threshold": threshold}


async def test_a_dse_at_the_threshold_is_certain() -> None:
    llm = Reader(answer=answers({"other two": "the Thames"}))
    dse = (await measure(llm, FIVE))[0]["dse"]
    assert (await measure(llm, FIVE, dse_threshold=dse))[0]["certain"] is True


@pytest.mark.parametrize(
    ("k", "half_linked", "certain"), [(3, True, False), (4, True, True), (18, False, False), (19, False, True)]
)
async def test_what_the_papers_threshold_calls_certain_depends_on_k(k: int, half_linked: bool, certain: bool) -> None:
    llm = Reader(answer=answers({"other one": "the Thames"}))
    judge = ScriptedJudge(lambda one, other: half_linked and one == "the Thames")
    state, _ = await measure(llm, ["one", *(f"text {number}" for number in range(k - 1))], judge)
    assert state["certain"] is certain


async def test_answers_that_differ_only_in_writing_are_not_judged() -> None:
    judge = ScriptedJudge()
    llm = Reader(answer=answers({"other two": "Lune.", "other three": "  LUNE ", "other four": "a Lune"}))
    state, _ = await measure(llm, FIVE, judge)
    assert state["dse"] == 0
    assert judge.batches == []
    assert state["responses"][2] == "Lune."


async def test_empty_answers_are_linked_to_each_other_alone() -> None:
    judge = ScriptedJudge(lambda a, b: True)
    state, _ = await measure(Reader(answer=answers({"other two": "", "other four": " "})), FIVE, judge)
    assert state["responses"] == ["the Lune", "the Lune", "", "the Lune", "", "the Lune"]
    assert state["link"][2] == [0, 0, 1, 0, 1, 0]
    assert state["link"][0] == [1, 1, 0, 1, 0, 1]
    assert judge.batches == []
    assert state["dse"] == pytest.approx(-(4 * math.log(4 / 6) + 2 * math.log(2 / 6)) / 6)
    assert state["warnings"] == ["The model's reply gave no answer: it is empty."]


async def test_an_answer_that_is_always_empty_is_not_certain() -> None:
    state, _ = await measure(Reader(answer=lambda texts: ""), FIVE)
    assert (state["answer"], state["dse"], state["certain"]) == ("", 0, False)
    assert state["uncertainty"]["value"] is None


async def test_an_empty_answer_is_asked_for_again() -> None:
    replies = iter(["", "the Lune"])
    llm = Reader(answer=lambda texts: next(replies) if texts == ["other one"] else "the Lune")
    state, _ = await measure(llm, ["one"], check_determinism=False)
    assert state["warnings"] == []
    assert state["responses"] == ["the Lune", "the Lune"]
    assert len(llm.calls) == 1 + 2 + 1


# --- what is measured ---


async def test_without_chunks_the_nearest_of_the_corpus_are_measured() -> None:
    llm = Reader()
    state, path = await measure(llm)
    assert path == ["prepare", "retrieve_top_k", "rephrase*5", "contexts", "repeat+respond*6", "entail", "measure_dse"]
    assert [chunk["id"] for chunk in state["evidence"]] == ["c0", "c1", "c2", "c3", "c4"]
    scores = [chunk["score"] for chunk in state["evidence"]]
    assert scores[0] == pytest.approx(1 / math.sqrt(1.01), abs=1e-6)
    assert scores == sorted(scores, reverse=True)
    assert sorted(llm.rephrased) == [f"text {i}" for i in range(5)]


async def test_chunks_none_is_no_chunks() -> None:
    graph = machine(Reader())
    state = await graph.ainvoke({"question": QUESTION, "chunks": None}, context={"k": 2})
    assert [chunk["id"] for chunk in state["evidence"]] == ["c0", "c1"]


async def test_fewer_chunks_than_k() -> None:
    graph = dense.build(opened(Reader(), count=3)).compile()
    state, path, _ = await walk(graph, {"question": QUESTION})
    assert path[2:] == ["rephrase*3", "contexts", "repeat+respond*4", "entail", "measure_dse"]
    assert len(state["link"]) == 4
    assert state["warnings"] == ["Fewer chunks than k = 5 were found: 3. All of them are used."]


async def test_nothing_found_is_answered_but_not_certain() -> None:
    llm = Reader()
    graph = dense.build(opened(llm, count=0)).compile()
    state, path, _ = await walk(graph, {"question": QUESTION}, {"check_determinism": False})
    assert path == ["prepare", "retrieve_top_k", "contexts", "respond", "entail", "measure_dse"]
    assert (state["answer"], state["dse"], state["certain"]) == ("the Lune", 0, False)
    assert (state["link"], state["rephrasings"], state["evidence"]) == ([[1.0]], [], [])
    assert any("found no chunks" in warning for warning in state["warnings"])
    assert len(llm.calls) == 1


async def test_one_chunk() -> None:
    llm = Reader(answer=answers({"other one": "the Thames"}))
    state, path = await measure(llm, ["one"])
    assert path == ["prepare", "rephrase", "contexts", "repeat+respond*2", "entail", "measure_dse"]
    assert state["dse"] == pytest.approx(math.log(2))
    assert state["shares"] == pytest.approx([math.log(2) / 2])


async def test_equal_texts_are_rephrased_once_but_replaced_one_at_a_time() -> None:
    llm = Reader()
    state, path = await measure(llm, ["one", "two", "one"], check_determinism=False)
    assert path == ["prepare", "rephrase*2", "contexts", "respond*4", "entail", "measure_dse"]
    assert sorted(llm.rephrased) == ["one", "two"]
    assert state["rephrasings"] == ["other one", "other two", "other one"]
    assert ["other one", "two", "one"] in llm.answered
    assert ["one", "two", "other one"] in llm.answered


@pytest.mark.parametrize("name", ["(original)", "(repeated)", "r_0", "r_0 again", "r_2"])
async def test_a_chunk_may_have_any_id(name: str) -> None:
    llm = Reader(answer=answers({"other one": "the Thames"}))
    state, _ = await measure(llm, [{"id": name, "text": "one"}, "two"])
    assert state["responses"] == ["the Lune", "the Thames", "the Lune"]
    assert state["warnings"] == []


async def test_known_rephrasings_are_not_made_again() -> None:
    llm = Reader()
    known = [{"text": text, "rephrasing": f"my {text}"} for text in FIVE[:4]]
    graph_input = {"question": QUESTION, "chunks": [*known, "six"]}
    state, path, _ = await walk(machine(llm), graph_input, {"check_determinism": False})
    assert path == ["prepare", "rephrase", "contexts", "respond*6", "entail", "measure_dse"]
    assert llm.rephrased == ["six"]
    assert state["rephrasings"] == [*(f"my {text}" for text in FIVE[:4]), "other six"]
    assert [f"my {FIVE[1]}" in texts for texts in llm.answered].count(True) == 1
    again = Reader()
    state, path, _ = await walk(machine(again), {"question": QUESTION, "chunks": known})
    assert path == ["prepare", "contexts", "repeat+respond*5", "entail", "measure_dse"]
    assert again.rephrased == []


async def test_no_chunks_are_answered_without_evidence_and_never_certain() -> None:
    llm = Reader()
    state, path, _ = await walk(machine(llm), {"question": QUESTION, "chunks": []}, {"check_determinism": False})
    assert path == ["prepare", "contexts", "respond", "entail", "measure_dse"]
    assert (state["answer"], state["evidence"], state["dse"], state["certain"]) == ("the Lune", [], 0, False)
    assert state["warnings"] == ["Nothing was measured: there are no chunks to rephrase."]


async def test_chunks_given_as_texts() -> None:
    state, _ = await measure(Reader(), ["one", "two"])
    assert state["evidence"] == [
        {"id": "given#1", "doc_id": "given#1", "title": "", "text": "one"},
        {"id": "given#2", "doc_id": "given#2", "title": "", "text": "two"},
    ]


async def test_chunks_given_as_records() -> None:
    llm = Reader()
    record = {"id": "x", "doc_id": "d", "title": "Rivers", "text": "one", "score": 1, "metadata": {"page": 3}}
    state, _ = await measure(llm, [record, {"text": "two", "metadata": "none"}, "three"])
    assert state["evidence"][0] == {**record, "score": 1.0}
    assert [chunk["id"] for chunk in state["evidence"]] == ["x", "given#2", "given#3"]
    prompts = [messages[1]["content"] for verb, messages in llm.calls if "Rivers" in messages[1]["content"]]
    assert len(prompts) == 5, "every answer sees the title, no rephrasing does"


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ("one text", "The chunks are not a list"),
        ({"text": "x"}, "The chunks are not a list"),
        (["", "x"], "Chunk 1 has no text"),
        (["x", " \n"], "Chunk 2 has no text"),
        (["x", {"id": "b"}], "Chunk 2 has no text"),
        (["x", 7], "Chunk 2 has no text"),
        ([{"id": "a", "text": "x"}, {"id": "a", "text": "y"}], "Two chunks have the id 'a'"),
        (["x", {"id": "given#1", "text": "y"}], "Two chunks have the id 'given#1'"),
    ],
)
async def test_chunks_that_cannot_be_measured_are_refused(chunks: Any, message: str) -> None:
    llm = Reader()
    with pytest.raises(UserFault, match=message):
        await measure(llm, chunks)
    assert llm.calls == []


# --- rephrasings that fail ---


async def test_a_bad_rephrasing_is_asked_for_again() -> None:
    llm = Reader(rephrasing=lambda text, again: f"other {text}" if again or text != "two" else "")
    state, path = await measure(llm, FIVE, check_determinism=False)
    assert path[1] == "rephrase*5"
    assert llm.rephrased.count("two") == 2
    assert state["rephrasings"][1] == "other two"
    assert state["warnings"] == []
    second = next(messages for _, messages in llm.calls if len(messages) > 2)
    assert second[-1]["role"] == "user"
    assert "cannot be used" in second[-1]["content"]


BAD: dict[str, Callable[[str], str | Completion]] = {
    "it is empty": lambda text: "  ",
    "it is the text itself": lambda text: f" {text.upper()}. ",
    "it refuses": lambda text: "I'm sorry, but I cannot help with that.",
    "it is longer than": lambda text: Completion(f"other {text} and then", "length"),
}


@pytest.mark.parametrize("problem", BAD)
async def test_a_chunk_that_cannot_be_rephrased_keeps_its_text(problem: str) -> None:
    def rephrasing(text: str, again: bool) -> str | Completion:
        return BAD[problem](text) if text == "two" else f"other {text}"

    llm = Reader(rephrasing=rephrasing, answer=answers({"other four": "the Thames"}))
    state, path = await measure(llm, FIVE, check_determinism=False)
    assert path == ["prepare", "rephrase*5", "contexts", "respond*5", "entail", "measure_dse"]
    assert llm.rephrased.count("two") == 2
    assert len(llm.answered) == 5
    assert state["rephrasings"] == ["other one", "two", "other three", "other four", "other five"]
    assert state["responses"] == ["the Lune"] * 4 + ["the Thames", "the Lune"]
    assert state["dse"] == pytest.approx(0.4506, abs=5e-5)
    assert len(state["warnings"]) == 1
    assert state["warnings"][0].startswith("Chunk 'given#2' was not rephrased")
    assert problem in state["warnings"][0]


async def test_a_chunk_too_long_to_rephrase_keeps_its_text() -> None:
    def rephrasing(text: str, again: bool) -> str:
        if text == "two":
            raise ContextOverflow("The prompt has 9000 tokens and the window is 2048: use fewer chunks.")
        return f"other {text}"

    llm = Reader(rephrasing=rephrasing)
    state, _ = await measure(llm, FIVE, check_determinism=False)
    assert state["rephrasings"][1] == "two"
    assert len(llm.calls) == 5 + 5
    assert state["warnings"] == [
        "Chunk 'given#2' was not rephrased: the chunk and its rephrasing do not fit the model's window."
    ]


def test_the_uncertainty_of_a_summary_is_dse() -> None:
    assert DenseContext(task="summarise").uncertainty == "own"
    with pytest.raises(UserFault, match="uncertainty=likelihood is measured on short answers: with task=summarise"):
        DenseContext(task="summarise", uncertainty="likelihood")
    with pytest.raises(UserFault, match="uncertainty=semantic_entropy is measured on short answers"):
        EscalateContext(rungs="dense_rag", rung_settings={"dense_rag": {"task": "summarise"}})


async def test_without_any_rephrasing_the_answer_is_not_certain() -> None:
    llm = Reader(rephrasing=lambda text, again: "")
    state, path = await measure(llm, FIVE, check_determinism=False)
    assert path == ["prepare", "rephrase*5", "contexts", "respond", "entail", "measure_dse"]
    assert (state["dse"], state["certain"], state["uncertainty"]["value"]) == (0, False, None)
    assert state["responses"] == ["the Lune"] * 6
    assert len(state["warnings"]) == 5


# --- the judge ---


async def test_every_two_distinct_answers_are_judged_once_each_way_in_one_call() -> None:
    judge = ScriptedJudge()
    llm = Reader(answer=answers({"other one": "A b", "other two": "c", "other three": "an a, B!", "other four": "c."}))
    await measure(llm, FIVE, judge)
    assert len(judge.batches) == 1
    forms = [(reference.plain(a), reference.plain(b)) for a, b in judge.asked]
    assert len(forms) == len(set(forms)) == 2 * 3
    assert {form for pair in forms for form in pair} == {"lune", "b", "c"}


async def test_the_number_of_judgements_depends_on_the_distinct_answers() -> None:
    judge = ScriptedJudge()
    await measure(Reader(answer=answers({f"other {text}": text for text in FIVE})), FIVE, judge)
    assert len(judge.asked) == 2 * (6 * 5 // 2)


async def test_a_pair_that_the_judge_cannot_label_is_no_entailment_and_a_warning() -> None:
    llm = Reader(answer=answers({"other two": "the Thames", "other four": "the Wyre"}))

    def entails(a: str, b: str) -> bool | None:
        return None if "Thames" in a else True

    state, _ = await measure(llm, FIVE, ScriptedJudge(entails))
    assert state["link"][2] == [0.5, 0.5, 1, 0.5, 0.5, 0.5]
    assert state["link"][4] == [1, 1, 0.5, 1, 1, 1]
    assert state["warnings"] == ["The judge 'judge' could not label 2 pairs of answers; they count as not entailing."]


async def test_a_fault_of_the_judge_is_retried_without_asking_the_model_again(fast_retries: None) -> None:
    judge = ScriptedJudge(faults=[ModelFault("judge", "timed out")] * 2)
    llm = Reader(answer=answers({"other two": "the Thames"}))
    state, path = await measure(llm, FIVE, judge, check_determinism=False)
    assert state["dse"] == pytest.approx(0.4506, abs=5e-5)
    assert len(judge.batches) == 3
    assert len(llm.calls) == 11
    assert path == ["prepare", "rephrase*5", "contexts", "respond*6", "entail", "measure_dse"]


async def test_a_lasting_fault_of_the_judge_ends_as_unavailable(fast_retries: None) -> None:
    judge = ScriptedJudge(faults=[ModelFault("judge", "timed out")] * 4)
    with pytest.raises(ModelUnavailable, match="judge did not answer after 4 attempts"):
        await measure(Reader(answer=answers({"other two": "the Thames"})), FIVE, judge)


# --- is the model deterministic? ---


def fickle() -> Reader:
    """Two answers in turn for the original context."""
    turns = iter(range(1000))
    return Reader(answer=lambda texts: f"the Lune {next(turns) % 2}" if texts == FIVE else "the Lune 0")


async def test_every_measurement_warns_of_a_model_that_is_not_deterministic() -> None:
    llm = fickle()
    graph = machine(llm)
    graph_input = {"question": QUESTION, "chunks": FIVE}
    first, path, _ = await walk(graph, graph_input)
    assert path[3] == "repeat+respond*6"
    second, path, _ = await walk(graph, graph_input)
    assert path[3] == "respond*6", "asked once a model"
    for state in (first, second):
        assert len(state["warnings"]) == 1
        assert "gave two answers to one prompt at temperature 0" in state["warnings"][0]
        assert "'scripted'" in state["warnings"][0]


async def test_a_deterministic_model_is_checked_once() -> None:
    llm = Reader()
    graph = machine(llm)
    for calls in (12, 11):
        llm.calls.clear()
        state = await graph.ainvoke({"question": QUESTION, "chunks": FIVE})
        assert state["warnings"] == []
        assert state["usage"]["calls"] == len(llm.calls) == calls
    assert llm.answered.count(FIVE) == 1


async def test_the_check_can_be_off() -> None:
    llm = fickle()
    state, path = await measure(llm, FIVE, check_determinism=False)
    assert path[3] == "respond*6"
    assert state["warnings"] == []
    assert len(llm.calls) == 11


async def test_the_check_belongs_to_the_resources() -> None:
    for _ in range(2):
        llm = Reader()
        await measure(llm, FIVE)
        assert len(llm.calls) == 12


# --- cost and latency ---


async def test_usage_counts_calls_per_node() -> None:
    llm = Reader(answer=answers({"other two": "the Thames"}))
    usage = (await measure(llm, FIVE))[0]["usage"]
    assert usage["calls"] == len(llm.calls) == 12
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (12 * 7, 12 * 3)
    assert {name: (node["runs"], node["calls"]) for name, node in usage["nodes"].items() if node["calls"]} == {
        "rephrase": (5, 5),
        "respond": (6, 6),
        "repeat": (1, 1),
    }


@dataclass
class Together(Reader):
    """Holds each call back until a whole round of calls is under way."""

    rounds: list[int] = field(default_factory=list)
    waiting: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        self.waiting += 1
        free = self.free
        if self.waiting == self.rounds[0]:
            self.rounds.pop(0)
            self.waiting, self.free = 0, asyncio.Event()
            free.set()
        await free.wait()
        return await super().complete(messages, sampling)


@pytest.mark.parametrize("k", [1, 2, 5, 13])
async def test_two_rounds_of_generation_and_one_of_judgement_whatever_k_is(k: int) -> None:
    texts = [f"text {i}" for i in range(k)]
    judge = ScriptedJudge()
    llm = Together(rounds=[k, k + 2], answer=answers({"other text 0": "the Thames"}))
    state, _ = await asyncio.wait_for(measure(llm, texts, judge), 60)
    assert llm.rounds == [], "rephrasings are all under way at once, then answers are"
    assert len(state["responses"]) == k + 1
    assert len(judge.batches) == 1


async def test_calls_stay_within_the_concurrency() -> None:
    llm = Reader(seconds=0.1)
    await measure(llm, FIVE, concurrency=2)
    assert llm.under_way_at_most == 2


# --- the rephrasing model ---


@pytest.mark.parametrize("live", [True, False])
async def test_another_model_may_rephrase(live: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, other = Reader(), Reader(name="other")
    named: list[str] = []

    def open_model(name: str) -> Reader:
        named.append(name)
        return other

    monkeypatch.setattr(opened_by_name, "open_chat_model", open_model)
    more: dict[str, Any] = {"rephraser": other} if live else {}
    graph: Any = dense.build(Resources(llm=llm, judge=ScriptedJudge(), **more)).compile()
    context = {"check_determinism": False, **({} if live else {"rephraser": "embedded"})}
    state = await graph.ainvoke({"question": QUESTION, "chunks": ["one", "two"]}, context=context)
    assert (sorted(other.rephrased), other.answered) == (["one", "two"], [])
    assert (llm.rephrased, len(llm.answered)) == ([], 3)
    assert named == ([] if live else ["embedded"])
    assert state["usage"]["nodes"]["rephrase"]["calls"] == 2


async def test_a_rephrasing_model_that_is_unknown_is_refused_before_any_model_is_called() -> None:
    llm = Reader()
    with pytest.raises(UserFault, match="nobody"):
        await machine(llm).ainvoke({"question": QUESTION, "chunks": FIVE}, context=DenseContext(rephraser="nobody:x"))
    assert llm.calls == []


# --- against the straight line ---


@st.composite
def worlds(draw: st.DrawFn) -> tuple[reference.World, list[str]]:
    """A world with few answers, so that many agree, and some texts twice."""
    texts = [f"t{i}" for i in draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))]
    wordings = ["Red", "the red.", "blue", "Blue!", "green", ""]
    seed = draw(st.integers(0, 2**32 - 1))
    spread = draw(st.integers(1, len(wordings)))
    stuck = draw(st.sets(st.sampled_from(sorted(set(texts)))))
    entailing = draw(st.sets(st.permutations(["red", "blue", "green"]).map(lambda three: (three[0], three[1]))))

    def answer(context: Sequence[str]) -> str:
        return wordings[int(np.random.default_rng([seed, *map(ord, "|".join(context))]).integers(spread))]

    nothing = reference.Chunking([], np.zeros((0, 1)))
    return (
        reference.World(
            answer=answer,
            rephrase=lambda text: None if text in stuck else f"other {text}",
            entails=lambda a, b: (a, b) in entailing,
            sufficient=lambda context: True,
            question=np.zeros(1),
            fixed=nothing,
            semantic=nothing,
        ),
        texts,
    )


def models_of(world: reference.World) -> tuple[Reader, ScriptedJudge]:
    llm = Reader(answer=world.answer, rephrasing=lambda text, again: world.rephrase(text) or "")
    return llm, ScriptedJudge(lambda a, b: world.entails(reference.plain(a), reference.plain(b)))


@settings(max_examples=40, database=None, suppress_health_check=list(HealthCheck))
@given(worlds())
async def test_it_computes_what_the_straight_line_computes(drawn: tuple[reference.World, list[str]]) -> None:
    world, texts = drawn
    expected = reference.dense(world, texts)
    llm, judge = models_of(world)
    state = await machine(llm, judge).ainvoke({"question": QUESTION, "chunks": texts})
    assert state["dse"] == pytest.approx(expected.dse, abs=1e-12)
    assert state["link"] == expected.links
    assert state["responses"] == expected.answers
    assert state["answer"] == expected.answers[0]
    assert state["certain"] is reference.is_certain(expected, reference.Options())
    probed = [rephrasing != text for rephrasing, text in zip(state["rephrasings"], texts, strict=True)]
    assert probed == expected.probed
    distinct = {reference.plain(response) for response in expected.answers} - {""}
    assert len(judge.asked) == len(distinct) * (len(distinct) - 1)


def test_the_straight_line_gives_the_values_of_the_paper() -> None:
    def links(value: float) -> list[list[float]]:
        return [[1.0 if i == j or 5 not in (i, j) else value for j in range(6)] for i in range(6)]

    assert reference.dse(links(1)) == 0
    assert reference.dse(links(0)) == pytest.approx(0.4506, abs=5e-5)
    assert reference.dse(links(0.5)) == pytest.approx(0.1623, abs=5e-5)
    assert reference.dse(np.eye(6).tolist()) == pytest.approx(1.7918, abs=5e-5)


async def test_the_chunks_of_a_measurement_that_was_refused_do_not_reach_the_threads_next_question() -> None:
    graph = machine(Reader(), checkpointer=InMemorySaver())
    with pytest.raises(UserFault):
        await graph.ainvoke({"question": "", "chunks": ["mine"]}, THREAD)
    state = await graph.ainvoke({"question": QUESTION}, THREAD)
    assert [chunk["id"] for chunk in state["evidence"]] == ["c0", "c1", "c2", "c3", "c4"]


@pytest.mark.parametrize("judge", ["nli:/nowhere/model", "nli:a/b/c", "nobody"])
async def test_a_judge_that_is_not_there_is_refused_before_any_model_is_called(judge: str) -> None:
    llm = Reader()
    graph: Any = dense.build(Resources(llm=llm, encoder=ScriptedEncoder())).compile()
    with pytest.raises(UserFault, match="There is no"):
        await graph.ainvoke({"question": QUESTION, "chunks": FIVE}, context=DenseContext(judge=judge))
    assert llm.calls == []
