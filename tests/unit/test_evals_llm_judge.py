"""A language model rates answers and evidence: which ratings are asked for, and what they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from dubito.errors import ContextOverflow, ContractFault, UserFault
from dubito.evals import run_folder
from dubito.evals.datasets import Dataset
from dubito.evals.llm_judge import LlmJudgeContext, judge_answer
from dubito.evals.measuring import judge_contexts, measure_ratings
from dubito.evals.questions import GoldQuestion
from dubito.evals.run_folder import EvaluationRun, System
from dubito.evals.scores import scores_of
from dubito.evals.store import Outcome, Store
from dubito.models.interfaces import Choice, Message, Tokens
from dubito.prompts import unparsed
from dubito.resources.resources import Resources
from dubito.state.records import Chunk
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import ScriptedChat

CHUNK: Chunk = {"id": "c", "doc_id": "c", "title": "", "text": "The Lune flows past it."}
DIRECT, REDUCTION = {"contribution"}, {"correctness", "correctness_without", "delta_correctness"}


@dataclass
class Rater(ScriptedChat):
    """Rates a contribution 7, an answer 10 with passages and 4 without; the answer "odd" gets no rating."""

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        await self._begin("choose", messages)
        assert options == (*"123456789", "10")
        asked = messages[-1]["content"]
        if "Answer: odd" in asked:
            raise ContractFault("the reply names none of the options.", "?")
        if "Answer: long" in asked and "<passage" in asked:
            raise ContextOverflow("The prompt does not fit.")
        if messages[0] == unparsed.contribution("", [CHUNK], "")[0]:
            return rated(7)
        return rated(10 if "<passage" in asked else 4)


def rated(best: int) -> Choice:
    return Choice({option: float(option == str(best)) for option in unparsed.RATINGS}, Tokens(1, 1))


@pytest.mark.parametrize(
    ("evaluation", "names"), [("both", DIRECT | REDUCTION), ("direct", DIRECT), ("reduction", REDUCTION)]
)
async def test_the_ratings_of_an_answer(evaluation: str, names: set[str]) -> None:
    llm = Rater()
    found = await judge_answer("Which?", "the Lune", [CHUNK], LlmJudgeContext(evaluation=evaluation), llm)
    every = {"contribution": 6 / 9, "correctness": 1.0, "correctness_without": 3 / 9, "delta_correctness": 6 / 9}
    assert found == pytest.approx({name: every[name] for name in names})
    assert len(llm.calls) == {"both": 3, "direct": 1, "reduction": 2}[evaluation]
    assert all(
        "Which?" in messages[-1]["content"] and "the Lune" in messages[-1]["content"] for _, messages in llm.calls
    )


async def test_without_an_answer_or_evidence_the_judge_is_not_asked_what_is_known() -> None:
    llm = Rater()
    empty = await judge_answer("Which?", "", [CHUNK], LlmJudgeContext(), llm)
    assert (set(empty.values()), llm.calls) == ({0.0}, [])
    alone = await judge_answer("Which?", "the Lune", [], LlmJudgeContext(), llm)
    assert (alone["contribution"], alone["correctness_without"], alone["delta_correctness"]) == (0.0, 3 / 9, 0.0)
    assert len(llm.calls) == 1


@pytest.fixture
def store(tmp_path: Path):
    with Store(tmp_path / "results.sqlite", new=True) as opened:
        yield opened


def answered(tmp_path: Path, store: Store, *answers: str) -> EvaluationRun:
    gold = [GoldQuestion(f"Which river is {n}?", ("the Lune",), id=f"{n}") for n in range(len(answers))]
    systems = [
        System("plain", "vanilla_rag", VanillaRagContext(llm="gguf:/own", concurrency=3).model_dump(mode="json"))
    ]
    more = {"traces": True, "memory": False, "metrics": []}
    dataset = Dataset("own.jsonl", tuple(gold), ())
    run = run_folder.begin(tmp_path / "run", systems, [dataset], corpus=None, limit=None, seed=0, more=more)
    for question, answer in zip(run.questions, answers, strict=True):
        output = {"answer": answer, "evidence": [CHUNK]}
        store.add(Outcome(system="plain", question=question.id, output=output, error=None, seconds=1))
    return run


async def test_answers_of_a_run_are_rated_once(tmp_path: Path, store: Store) -> None:
    run, llm = answered(tmp_path, store, "the Lune", "odd", "long"), Rater()
    heard: list[tuple[int, int]] = []
    for _ in range(2):
        unrated = await measure_ratings(
            run, store, judge_contexts(run, {}), Resources(llm=llm), lambda *so_far: heard.append(so_far), at_once=1
        )
        assert unrated == 2, "the one without a rating and the one that does not fit are asked about again"
    assert heard[2] == (3, 3)
    assert heard[-1] == (2, 2)
    scores = scores_of(run, store)
    assert scores["plain", "own/0"].metrics["delta_correctness"] == pytest.approx(6 / 9)
    assert "correctness" not in scores["plain", "own/1"].metrics


def test_the_judge_is_the_systems_own_model_unless_another_is_named(tmp_path: Path, store: Store) -> None:
    run = answered(tmp_path, store)
    own = judge_contexts(run, {})["plain"]
    assert (own.llm, own.concurrency) == ("gguf:/own", 3)
    assert judge_contexts(run, {"llm": "gguf:/judge", "evaluation": "direct"})["plain"].llm == "gguf:/judge"


def test_a_wrong_setting_is_refused_in_a_sentence() -> None:
    with pytest.raises(UserFault, match="evaluation is 'half'"):
        LlmJudgeContext(evaluation="half")
