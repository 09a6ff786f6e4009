"""The certainty of an answer: its signals by hand, what is sampled and how, and what a calibration withholds."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import CapabilityMissing, UserFault
from dubito.graphs import chat, vanilla_rag
from dubito.graphs.registry import context_type, graph_named, graph_names, takes_a_plain_question
from dubito.graphs.tool import words_for_agent
from dubito.models.interfaces import Completion, Message, Reply, Sampling, Token, Tokens
from dubito.nodes.check_certainty import check_certainty, decision
from dubito.presenters.blocks import Words
from dubito.presenters.presenter import outcome_of
from dubito.presenters.words import WITHHELD
from dubito.render.facts import shown_answer
from dubito.resources.resources import Resources
from dubito.state.calibration import AnswerCalibration, Combination, identity, settings_of
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import (
    CERTIFIED,
    QUERY,
    QUESTION,
    THE_CORPUS,
    VECTORS,
    KnownCorpus,
    ScriptedChat,
    ScriptedJudge,
    ScriptedRetriever,
)

INPUT: Any = {"question": QUESTION}
SAMPLED: dict[str, Any] = {"uncertainty": "semantic_entropy", "answer_samples": 4}


@dataclass
class Sampled(ScriptedChat):
    """Answers "the Lune" greedily, with two tokens; `samples` are what it says when it is sampled."""

    name: str = "embedded"
    samples: Sequence[str] = ("the Lune", "the Lune river", "the Wyre", "the Lune")
    answer: str = "the Lune"
    asked: list[tuple[list[Message], Sampling]] = field(default_factory=list)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        await self._begin("complete", messages)
        self.asked.append((list(messages), sampling))
        if sampling.temperature:
            return Reply(tuple(Completion(text, "stop") for text in self.samples[: sampling.n]), Tokens(7, 12))
        tokens = (Token("the", -0.5), Token(" Lune", -0.25)) if sampling.logprobs else ()
        return Reply((Completion(self.answer, "stop", tokens),), Tokens(7, 3))


def means_the_same(one: str, other: str) -> bool:
    return one.split()[:2] == other.split()[:2]


async def run(
    model: ScriptedChat, judge: ScriptedJudge | None = None, **settings: Any
) -> tuple[dict[str, Any], list[str]]:
    """The output and the names of the nodes in the order in which they ended."""
    retriever = ScriptedRetriever(QUERY, VECTORS)
    opened = KnownCorpus(model, retriever=retriever, judge=judge or ScriptedJudge(means_the_same))
    graph: Any = vanilla_rag.build(opened).compile(name="vanilla_rag")
    path: list[str] = []
    output: dict[str, Any] = {}
    async for mode, part in graph.astream(INPUT, context=settings, stream_mode=["updates", "values"]):
        if mode == "updates":
            path += list(part)
        else:
            output = part
    return output, path


async def calibrated(folder: Path, threshold: float = 0.6, corpus: str | None = THE_CORPUS, **settings: Any) -> str:
    """A calibration file for plain RAG."""
    context = VanillaRagContext(**SAMPLED, **settings, judge="embedded")  # what auto takes
    made = AnswerCalibration(
        technique="vanilla_rag",
        model=identity(context.llm),
        settings=settings_of(context),
        threshold=threshold,
        **CERTIFIED,
        corpus=corpus,
    )
    await asyncio.to_thread(made.save, folder / "c.json")
    return str(folder / "c.json")


async def test_without_a_setting_the_certainty_is_not_looked_at() -> None:
    llm = Sampled()
    output, path = await run(llm)
    assert path == ["prepare", "retrieve", "generate"]
    assert (output["uncertainty"], output["signals"], output["abstained"], output["certificate"]) == (
        None,
        {},
        False,
        None,
    )
    assert len(llm.asked) == 1


async def test_semantic_entropy_and_disagreement_of_four_samples_by_hand() -> None:
    llm = Sampled()
    output, path = await run(llm, **SAMPLED, answer_temperature=0.8)
    assert path == ["prepare", "retrieve", "generate", "check_certainty"]
    # three samples mean "the Lune", one something else
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert output["uncertainty"] == {"signal": "semantic entropy", "value": pytest.approx(entropy), "threshold": None}
    assert output["signals"] == {"semantic entropy": pytest.approx(entropy), "disagreement": 0.25}
    assert output["meanings"] == [["the Lune", "the Lune river", "the Lune"], ["the Wyre"]]
    (greedy, _), (sampled, sampling) = llm.asked
    assert sampled == greedy, "the samples answer the same prompt"
    assert (sampling.n, sampling.temperature) == (4, 0.8)
    assert output["answer"] == "the Lune"


async def test_the_same_samples_disagree_with_another_answer() -> None:
    output, _ = await run(Sampled(answer="the Ribble"), uncertainty="disagreement", answer_samples=4)
    assert output["uncertainty"] == {"signal": "disagreement", "value": 1.0, "threshold": None}


async def test_two_answers_mean_the_same_only_if_each_entails_the_other() -> None:
    judge = ScriptedJudge(lambda premise, hypothesis: premise.startswith(hypothesis))
    output, _ = await run(Sampled(), judge, **SAMPLED)
    # "the Lune river" entails "the Lune", which does not entail it: meanings of 2, 1 and 1 samples
    assert output["signals"] == {"semantic entropy": pytest.approx(1.5 * math.log(2)), "disagreement": 0.5}


async def test_the_own_signal_stays_beside_the_new_one_and_the_samples_see_what_the_answer_was_made_from() -> None:
    llm = Sampled()
    opened = Resources(llm, judge=ScriptedJudge(means_the_same))
    state: Any = {
        "question": QUESTION,
        "answer": "the Lune",
        "evidence": [],
        "uncertainty": {"signal": "support", "value": 0.4, "threshold": None},
        "incremental_context": ["Lancaster lies on the Lune."],
    }
    update = await check_certainty(state, VanillaRagContext(**SAMPLED, thinking=True), opened)
    assert list(update["signals"]) == ["support", "semantic entropy", "disagreement"]
    assert update["signals"]["support"] == 0.4
    asked = " ".join(message["content"] for message in llm.asked[0][0])
    assert "Lancaster lies on the Lune." in asked
    assert llm.asked[0][1].thinking


async def test_all_signals_are_measured_to_be_combined_and_the_entropy_stands_until_they_are(tmp_path: Path) -> None:
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    signals = {
        "negative log-likelihood": 0.75,
        "semantic entropy": pytest.approx(entropy),
        "disagreement": 0.25,
    }
    output, _ = await run(Sampled(), uncertainty="combined", answer_samples=4)
    assert output["signals"] == signals
    assert output["uncertainty"] == {"signal": "semantic entropy", "value": pytest.approx(entropy), "threshold": None}
    mute, _ = await run(Sampled(capabilities=frozenset()), uncertainty="combined", answer_samples=4)
    assert list(mute["signals"]) == ["semantic entropy", "disagreement"]

    combination = Combination(intercept=-1.0, weights={"negative log-likelihood": 2.0, "disagreement": 4.0})
    context = VanillaRagContext(uncertainty="combined", answer_samples=4, judge="embedded")
    made = AnswerCalibration(
        technique="vanilla_rag",
        model=identity(context.llm),
        settings=settings_of(context),
        threshold=0.8,
        combination=combination,
        **CERTIFIED | {"signal": "probability of an error"},
    )
    path = tmp_path / "combined.json"
    await asyncio.to_thread(made.save, path)
    decided, _ = await run(Sampled(), uncertainty="combined", answer_samples=4, calibration=str(path))
    # −1 + 2 · 0.75 + 4 · 0.25 = 1.5
    wrong = pytest.approx(1 / (1 + math.exp(-1.5)))
    assert decided["uncertainty"] == {"signal": "probability of an error", "value": wrong, "threshold": 0.8}
    assert (decided["abstained"], decided["withheld_answer"]) == (True, "the Lune")


@pytest.mark.parametrize("signals", [{"a": 1.0}, {"a": 1.0, "b": None}, {"a": 1.0, "b": math.nan}, {}])
def test_nothing_is_combined_from_a_signal_that_is_unknown(signals: dict[str, float | None]) -> None:
    combination = Combination(intercept=0.5, weights={"a": 1.0, "b": -1.0})
    assert combination.value(signals) is None
    assert combination.value({"a": 1e308, "b": 0.0, "c": None}) == 1.0
    assert combination.value({"a": 1e308, "b": -1e308}) is None


async def test_an_uncertainty_at_the_threshold_is_certain_enough(tmp_path: Path) -> None:
    calibration = await asyncio.to_thread(
        AnswerCalibration.read, await calibrated(tmp_path, threshold=0.25), "vanilla_rag"
    )
    given, withheld = (
        decision("the Lune", {"signal": "x", "value": value, "threshold": None}, calibration) for value in (0.25, 0.251)
    )
    assert (given["abstained"], withheld["abstained"]) == (False, True)


async def test_the_likelihood_is_that_of_the_greedy_answer() -> None:
    output, _ = await run(Sampled(), uncertainty="likelihood")
    assert output["uncertainty"] == {"signal": "negative log-likelihood", "value": 0.75, "threshold": None}


async def test_the_likelihood_needs_log_probabilities() -> None:
    with pytest.raises(CapabilityMissing, match="set llm to a model that gives them"):
        await run(Sampled(capabilities=frozenset()), uncertainty="likelihood")


async def test_empty_samples_leave_the_uncertainty_unknown() -> None:
    output, _ = await run(Sampled(samples=["", " "]), uncertainty="semantic_entropy", answer_samples=2)
    assert output["uncertainty"] == {"signal": "semantic entropy", "value": None, "threshold": None}


async def test_a_pair_that_the_judge_cannot_label_is_no_agreement_and_is_said() -> None:
    judge = ScriptedJudge(lambda one, other: None)
    output, _ = await run(Sampled(samples=["a", "b"]), judge, uncertainty="semantic_entropy", answer_samples=2)
    assert output["signals"]["semantic entropy"] == pytest.approx(math.log(2))
    assert any("could not label" in warning for warning in output["warnings"])


@pytest.mark.parametrize(("threshold", "given"), [(0.6, True), (0.5, False)])
async def test_an_answer_is_given_iff_its_uncertainty_is_at_most_the_threshold(
    threshold: float, given: bool, tmp_path: Path
) -> None:
    output, _ = await run(Sampled(), **SAMPLED, calibration=await calibrated(tmp_path, threshold))
    assert output["abstained"] is not given
    assert (output["answer"], output["withheld_answer"]) == (("the Lune", "") if given else ("", "the Lune"))
    assert output["evidence"], "the evidence stays visible"
    assert output["uncertainty"]["threshold"] == threshold
    assert output["certificate"] == {
        "sentence": "At most 20% of the answers given are wrong, with 90% confidence, for questions like those of "
        "questions.jsonl.",
        "holds": True,
        "signal": "semantic entropy",
        "threshold": threshold,
        "right": "exact",
    }


async def test_an_unknown_uncertainty_and_an_empty_answer_are_withheld(tmp_path: Path) -> None:
    unknown, _ = await run(Sampled(samples=[""] * 4), **SAMPLED, calibration=await calibrated(tmp_path))
    assert unknown["abstained"]
    empty, _ = await run(Sampled(answer=""), **SAMPLED, calibration=await calibrated(tmp_path))
    assert empty["abstained"]


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"k": 3}, "k 5, not 3"),
        ({"answer_samples": 5}, "answer_samples 4, not 5"),
        ({"llm": "ollama:other"}, "the chat model embedded, not other"),
        ({"uncertainty": "disagreement"}, "uncertainty semantic_entropy, not disagreement"),
    ],
)
async def test_a_calibration_of_other_settings_is_refused_before_the_first_call(
    settings: dict[str, Any], what: str, tmp_path: Path
) -> None:
    llm = Sampled()
    with pytest.raises(UserFault, match=what):
        await run(llm, **{**SAMPLED, **settings}, calibration=await calibrated(tmp_path))
    assert llm.asked == []


async def test_a_file_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    path = Path(await calibrated(tmp_path))
    text = await asyncio.to_thread(path.read_text)
    await asyncio.to_thread(path.write_text, json.dumps({**json.loads(text), "threshold": 9.0}))
    with pytest.raises(UserFault, match="was changed after it was made"):
        await run(Sampled(), **SAMPLED, calibration=str(path))


async def test_another_corpus_is_refused_and_the_same_one_elsewhere_is_not(tmp_path: Path) -> None:
    for name, text in {"one": "It flows past Lancaster.", "same": "It flows past Lancaster.", "other": "x"}.items():
        record = json.dumps({"id": "1", "title": "Lune", "text": text})
        await asyncio.to_thread((tmp_path / f"{name}.jsonl").write_text, record)
    opened = Resources(Sampled(), judge=ScriptedJudge(means_the_same))
    graph: Any = vanilla_rag.build(opened).compile(name="vanilla_rag")
    sha = await opened.chunks_sha256(VanillaRagContext(corpus=str(tmp_path / "one.jsonl"), first_stage="bm25"))
    by_words = {**SAMPLED, "first_stage": "bm25"}
    settings = {**by_words, "calibration": await calibrated(tmp_path, corpus=sha, first_stage="bm25")}
    same = await graph.ainvoke(INPUT, context={**settings, "corpus": str(tmp_path / "same.jsonl")})
    assert same["certificate"]["holds"]
    with pytest.raises(UserFault, match="made with another corpus"):
        await graph.ainvoke(INPUT, context={**settings, "corpus": str(tmp_path / "other.jsonl")})


async def test_where_a_corpus_is_unknown_nothing_is_certified_and_the_answer_is_given_all_the_same(
    tmp_path: Path,
) -> None:
    unknown, _ = await run(Sampled(), **SAMPLED, calibration=await calibrated(tmp_path, corpus=None))
    live = Resources(Sampled(), retriever=ScriptedRetriever(QUERY, VECTORS), judge=ScriptedJudge(means_the_same))
    graph: Any = vanilla_rag.build(live).compile(name="vanilla_rag")
    settings = {**SAMPLED, "calibration": await calibrated(tmp_path)}
    searched = await graph.ainvoke(INPUT, context=settings)
    for output, said in (
        (unknown, "does not say which corpus"),
        (searched, "retriever whose corpus cannot be compared"),
    ):
        assert output["answer"] == "the Lune"
        assert not output["certificate"]["holds"]
        assert said in output["certificate"]["sentence"]


async def test_nothing_is_certified_of_the_answers_of_another_model(tmp_path: Path) -> None:
    live = Sampled(name="langchain:ChatOpenAI#gpt")
    output, _ = await run(live, **SAMPLED, calibration=await calibrated(tmp_path))
    assert output["answer"] == "the Lune"
    assert not output["certificate"]["holds"]
    assert output["certificate"]["sentence"] == (
        "The calibration was made with the chat model embedded, and langchain:ChatOpenAI#gpt wrote the answer."
    )


async def test_a_collection_of_a_vector_database_is_known_by_its_name() -> None:
    name = "qdrant:http://nowhere:6333#notes"
    assert await Resources().known_by(VanillaRagContext(corpus=name)) == name
    live = Resources(retriever=ScriptedRetriever(QUERY, VECTORS))
    assert await live.known_by(VanillaRagContext(corpus=name)) is None


def test_a_file_that_a_setting_names_counts_by_its_content(tmp_path: Path) -> None:
    one, same, other = (tmp_path / name for name in ("one.json", "same.json", "other.json"))
    for path, text in ((one, "[1]"), (same, "[1]"), (other, "[2]")):
        path.write_text(text)
    cot: Any = context_type(graph_named("cot"))
    seen = [settings_of(cot(examples=str(path)))["examples"] for path in (one, same, other)]
    assert seen[0] == seen[1] != seen[2]
    assert settings_of(cot(examples="3"))["examples"] == "3"


def test_every_graph_that_answers_can_look_at_its_certainty() -> None:
    for name in graph_names():
        graph = graph_named(name)
        if takes_a_plain_question(graph) and name != "escalate":  # its rungs can
            assert "check_certainty" in graph.get_graph().nodes, name
            assert {"uncertainty", "calibration"} <= context_type(graph).model_fields.keys(), name


async def test_people_and_agents_are_told_that_an_answer_is_withheld(tmp_path: Path) -> None:
    path = await calibrated(tmp_path, threshold=0.5)
    settings = {**SAMPLED, "calibration": path}
    output, _ = await run(Sampled(), **settings)
    assert shown_answer(output) == WITHHELD
    said = [block.text for block in outcome_of("vanilla_rag", output, VanillaRagContext()) if isinstance(block, Words)]
    assert said == [
        "Uncertainty: semantic entropy 0.562, above the threshold 0.500.",
        "Not certain enough to answer. The answer that is withheld: the Lune",
        output["certificate"]["sentence"],
    ]
    told = words_for_agent(output)
    assert told.startswith("Not certain enough to answer. What the documents say:\n- T0: ")
    assert told.count("\n") == 3
    opened = Resources(Sampled(), retriever=ScriptedRetriever(QUERY, VECTORS), judge=ScriptedJudge(means_the_same))
    talk: Any = chat.build("vanilla_rag", opened).compile(name="vanilla_rag_chat")
    replied = await talk.ainvoke({"messages": [("user", QUESTION)]}, context=settings)
    assert replied["messages"][-1].text == "I am not certain enough to answer that."
    assert replied["messages"][-1].response_metadata["withheld_answer"] == "the Lune"


@pytest.mark.parametrize(("threshold", "shown"), [(0.5, []), (0.6, ["the Lune"])])
async def test_nothing_of_an_answer_is_streamed_before_it_is_given(
    threshold: float, shown: list[str], tmp_path: Path
) -> None:
    settings = {**SAMPLED, "calibration": await calibrated(tmp_path, threshold)}
    opened = Resources(Sampled(), retriever=ScriptedRetriever(QUERY, VECTORS), judge=ScriptedJudge(means_the_same))
    graph: Any = vanilla_rag.build(opened).compile(name="vanilla_rag")
    pieces = [
        (chunk.content, metadata["langgraph_node"])
        async for chunk, metadata in graph.astream(INPUT, context=settings, stream_mode="messages")
        if chunk.content
    ]
    assert pieces == [(text, "check_certainty") for text in shown]
