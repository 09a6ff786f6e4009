"""SePer of an evaluation's answers and of their steps: which are measured, once, and with whose belief."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dubito.errors import ContextOverflow, ModelFault, ModelUnavailable, UserFault
from dubito.evals import measuring, run_folder
from dubito.evals.datasets import Dataset
from dubito.evals.measuring import measure_seper, measure_steps, seper_contexts
from dubito.evals.questions import GoldQuestion
from dubito.evals.run_folder import EvaluationRun, System
from dubito.evals.runner import Asker, run_all
from dubito.evals.seper import Piece, SePerResult, measure_pieces
from dubito.evals.store import Outcome, Store
from dubito.models.interfaces import Completion, Judgements, Message, Reply, Sampling, Token, Tokens
from dubito.resources.resources import Resources
from dubito.state.reasoning import ReasoningContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import ScriptedChat, ScriptedJudge, ScriptedRetriever

ANSWER = "So the final answer is: the Lune."


@dataclass
class Believer(ScriptedChat):
    """Believes in the Lune as far as it is shown passages."""

    sampled: list[int] = field(default_factory=list)

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        await self._begin("complete", messages)
        if sampling.n == 1:
            return Reply((Completion(ANSWER, "stop"),), Tokens(7, 3))
        shown = sum(one["content"].count("<passage") for one in messages)
        self.sampled.append(shown)
        texts = ["the Lune" if place < shown else "the Wyre" for place in range(sampling.n)]
        return Reply(tuple(Completion(text, "stop", (Token(text, -1.0),)) for text in texts), Tokens(7, 3))


def resources_of(llm: ScriptedChat) -> dict[str, Any]:
    rows = [[1.0, 0.1], [1.0, 0.2], [1.0, 0.3]]
    retriever = ScriptedRetriever([1.0, 0.0], rows, ["first", "second", "third"])
    judge = ScriptedJudge(entails=lambda one, other: one.split()[-1] == other.split()[-1])
    return {"llm": llm, "retriever": retriever, "judge": judge}


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path / "results.sqlite", new=True) as opened:
        yield opened


def two_systems(tmp_path: Path) -> EvaluationRun:
    gold = [GoldQuestion(f"Which river is {n}?", ("the Lune",), id=f"{n}") for n in range(3)]
    unanswerable = GoldQuestion("Which sea?", (), id="none", answerable=False)
    systems = [
        System("two", "vanilla_rag", VanillaRagContext(k=2).model_dump(mode="json")),
        System("three", "vanilla_rag", VanillaRagContext(k=3).model_dump(mode="json")),
        System("alone", "cot", ReasoningContext().model_dump(mode="json")),
    ]
    dataset = Dataset("own.jsonl", (*gold, unanswerable), ())
    more = {"traces": True, "memory": False, "metrics": []}
    return run_folder.begin(tmp_path / "run", systems, [dataset], corpus=None, limit=None, seed=0, more=more)


async def asked(run: EvaluationRun, store: Store, llm: ScriptedChat, *, traces: bool = True) -> Resources:
    asker = Asker(Resources(**resources_of(llm)), traces=traces)
    await run_all(run.tasks(), asker, store, at_once=2, retry_failed=False, on_end=lambda outcome: None)
    assert all(store.ended().values())
    return asker.resources


async def test_each_answers_evidence_is_measured_as_by_itself(tmp_path: Path, store: Store):
    llm, run = Believer(), two_systems(tmp_path)
    resources = await asked(run, store, llm)
    store.add(
        Outcome(
            system="two",
            question="own/2",
            output=None,
            error={"type": "UserFault", "message": "x", "unavailable": False},
            seconds=1,
        )
    )
    heard: list[tuple[int, int]] = []
    contexts = seper_contexts(run, {"samples": 4})
    assert await measure_seper(run, store, contexts, resources, lambda *so_far: heard.append(so_far)) == 0
    found = store.measurements("seper")
    assert set(found) == {(one, f"own/{n}") for one in ("two", "three", "alone") for n in range(3)} - {("two", "own/2")}
    for (system, question), values in found.items():
        outcome = next(one for one in store.outcomes() if (one.system, one.question) == (system, question))
        assert outcome.output is not None
        text = next(one.question for one in run.questions if one.id == question)
        piece = Piece(text, ("the Lune",), tuple(outcome.output["evidence"]))
        (worth,) = await measure_pieces([piece], contexts[system], resources)
        assert isinstance(worth, SePerResult)
        assert values == {"seper": worth.seper, "seper_without": worth.seper_without, "delta": worth.delta}
    assert found["three", "own/0"]["seper"] > found["two", "own/0"]["seper"] > found["alone", "own/0"]["seper"]
    assert found["alone", "own/0"]["delta"] == 0
    assert heard[-1] == (8, 8)


async def test_evidence_beyond_the_window_is_counted_and_not_measured(tmp_path: Path, store: Store):
    llm, run = Believer(), two_systems(tmp_path)
    resources = await asked(run, store, llm)
    # the first prompt is that without evidence: of the first question, and so of its three answers
    llm.faults = [ContextOverflow("too long")]
    assert await measure_seper(run, store, seper_contexts(run, {"samples": 4}), resources, lambda *_: None) == 3
    assert {question for _, question in store.measurements("seper")} == {"own/1", "own/2"}


async def test_what_was_measured_is_not_measured_again(tmp_path: Path, store: Store):
    llm, run = Believer(), two_systems(tmp_path)
    resources = await asked(run, store, llm)
    contexts = seper_contexts(run, {"samples": 4})
    await measure_seper(run, store, contexts, resources, lambda *_: None)
    sampled = len(llm.sampled)
    assert sampled == 3 * 3  # with two, with three and without, for each question
    await measure_seper(run, store, contexts, resources, lambda *_: None)
    assert len(llm.sampled) == sampled


async def test_the_next_batch_is_sampled_while_one_is_judged(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(measuring, "BATCH", 4)
    llm, run = Believer(), two_systems(tmp_path)
    await asked(run, store, llm)

    class Patient(ScriptedJudge):
        """Judges nothing before the second batch is sampled: the first one has five different prompts."""

        async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
            while len(llm.sampled) <= 5:  # noqa: ASYNC110 - the model only counts
                await asyncio.sleep(0.001)
            return await super().judge(question, pairs)

    resources = Resources(**resources_of(llm) | {"judge": Patient()})
    heard: list[tuple[int, int]] = []
    async with asyncio.timeout(20):
        await measure_seper(run, store, seper_contexts(run, {"samples": 4}), resources, lambda *so: heard.append(so))
    assert heard[-1] == (9, 9)
    assert len(heard) == 3
    assert len(store.measurements("seper")) == 9


@pytest.mark.usefixtures("fast_retries")
async def test_an_outage_loses_nothing_that_was_measured(tmp_path: Path, store: Store):
    llm, run = Believer(), two_systems(tmp_path)
    resources = await asked(run, store, llm)
    llm.faults = [ModelFault("m", "down")] * 100
    with pytest.raises(ModelUnavailable):
        await measure_seper(run, store, seper_contexts(run, {"samples": 4}), resources, lambda *_: None)
    llm.faults = []
    await measure_seper(run, store, seper_contexts(run, {"samples": 4}), resources, lambda *_: None)
    assert len(store.measurements("seper")) == 9


async def test_each_step_of_a_trace_is_measured(tmp_path: Path, store: Store):
    llm, run = Believer(), two_systems(tmp_path)
    resources = await asked(run, store, llm)
    await measure_seper(run, store, seper_contexts(run, {"samples": 4}), resources, lambda *_: None)
    heard: list[tuple[int, int]] = []
    await measure_steps(
        run, store, seper_contexts(run, {"samples": 4}), resources, lambda *so_far: heard.append(so_far), at_once=2
    )
    steps, whole = store.measurements("seper_steps"), store.measurements("seper")
    assert set(steps) == set(whole)
    for key, found in steps.items():
        if key[0] == "alone":
            assert found == {"steps": []}
            continue
        (step,) = found["steps"]
        assert step["delta"] == pytest.approx(whole[key]["delta"])
        assert (step["what"], step["words"]) == ("known", {"two": 2, "three": 3}[key[0]])
    assert heard[-1] == (9, 9)


async def test_without_traces_there_are_no_steps_to_measure(tmp_path: Path, store: Store):
    llm, run = Believer(), two_systems(tmp_path)
    resources = await asked(run, store, llm, traces=False)
    with pytest.raises(UserFault, match="this run has none"):
        await measure_steps(run, store, seper_contexts(run, {}), resources, lambda *_: None, at_once=1)


def test_the_systems_own_model_believes(tmp_path: Path):
    systems = [
        System("a", "vanilla_rag", VanillaRagContext(llm="hf:/a", concurrency=3).model_dump(mode="json")),
        System("b", "cot", ReasoningContext(llm="hf:/b").model_dump(mode="json")),
    ]
    gold = Dataset("own.jsonl", (GoldQuestion("Q?", ("a",), id="1"),), ())
    run = run_folder.begin(tmp_path / "r", systems, [gold], corpus=None, limit=None, seed=0, more={})
    found = seper_contexts(run, {"samples": 5, "rule": "hard"})
    assert {label: (one.llm, one.samples, one.rule) for label, one in found.items()} == {
        "a": ("hf:/a", 5, "hard"),
        "b": ("hf:/b", 5, "hard"),
    }
    assert found["a"].concurrency == 3
