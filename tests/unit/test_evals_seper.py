"""Many pieces of evidence in one batch: each result is that of the graph, with the fewest calls."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from dubito.errors import CapabilityMissing, ContextOverflow, ModelFault, ModelUnavailable, UserFault
from dubito.evals.seper import Piece, SePerResult, measure_pieces
from dubito.graphs import seper
from dubito.models.interfaces import Completion, Judgements, Token
from dubito.models.metering import Meter, current_meter
from dubito.resources.resources import Resources
from dubito.state.records import Chunk
from dubito.state.seper import SePerContext
from dubito.tests.scripted import Believer

WORDS = ["Ada", "the Ada!", "Bob", "Ada Byron", "", "Cy"]


def number(*parts: object) -> np.random.Generator:
    """A random generator seeded by the parts."""
    return np.random.default_rng(zlib.crc32(repr(parts).encode()))


class Chance:
    """A judge with random but repeatable labels; for some pairs it has none."""

    name = "chance"

    def __init__(self, faults: Sequence[Exception] = ()) -> None:
        self.faults = list(faults)
        self.asked: list[tuple[str, list[tuple[str, str]]]] = []

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        assert pairs
        self.asked.append((question, list(pairs)))
        if self.faults:
            raise self.faults.pop(0)
        rows = [number(question, *pair).dirichlet([1, 1, 1]) for pair in pairs]
        unsaid = [number("unsaid", question, *pair).random() < 0.05 for pair in pairs]
        return np.array([[math.nan] * 3 if none else row for row, none in zip(rows, unsaid, strict=True)])


def say(question: str, shown: Sequence[str]) -> list[Completion]:
    """Ten responses that depend on the chunks in the prompt."""
    chance = number(question, *shown)
    words = [WORDS[int(place)] for place in chance.integers(len(WORDS), size=10)]
    return [
        Completion(word, "stop", tuple(Token("t", float(-one)) for one in chance.exponential(size=3))) for word in words
    ]


def chunk(name: str) -> Chunk:
    return {"id": name, "doc_id": name, "title": "T", "text": name}


PIECES = [
    Piece("who?", ("Ada",), (chunk("one"),)),
    Piece("who?", ("Ada",), (chunk("one"), chunk("two"))),
    Piece("who?", ("Ada",), ()),
    Piece("who?", ("Bob", "Cy"), (chunk("one"),)),
    Piece("where?", ("Ada Byron",), (chunk("one"),)),
    Piece("who?", ("Ada",), (chunk("one"),)),
]


@pytest.mark.parametrize("rule", ["soft", "hard"])
@pytest.mark.parametrize("several", ["max", "mean"])
async def test_each_result_is_that_of_the_graph(rule: Any, several: Any) -> None:
    context = SePerContext.unchecked({"rule": rule, "several_answers": several, "cluster_rule": "loose"})
    together = await measure_pieces(PIECES, context, Resources(llm=Believer(believes=say), judge=Chance()))
    graph: Any = seper.build(Resources(llm=Believer(believes=say), judge=Chance())).compile()
    for piece, found in zip(PIECES, together, strict=True):
        asked = {"question": piece.question, "answers": list(piece.answers), "chunks": list(piece.evidence)}
        alone = await graph.ainvoke(asked, context=context)
        assert isinstance(found, SePerResult)
        assert (found.seper, found.seper_without, found.delta) == (
            alone["seper"],
            alone["seper_without"],
            alone["delta"],
        )
        assert found.with_context == alone["with_context"]
        assert found.without_context == alone["without_context"]
    deltas = {found.delta for found in together if isinstance(found, SePerResult)}
    assert len(deltas) == 5, "they differ, but for the piece that comes twice"


async def test_equal_prompts_are_sampled_once_and_a_question_is_judged_in_one_call() -> None:
    llm, judge = Believer(believes=say), Chance()
    await measure_pieces(PIECES, SePerContext(), Resources(llm=llm, judge=judge))
    assert sorted(llm.sampled) == sorted(
        [("who?", ()), ("who?", ("one",)), ("who?", ("one", "two")), ("where?", ()), ("where?", ("one",))]
    )
    assert sorted(question for question, _ in judge.asked) == ["where?", "who?"]
    for _, pairs in judge.asked:
        assert len(pairs) == len(set(pairs))


async def test_samples_stay_within_the_concurrency_and_are_metered() -> None:
    llm = Believer(believes=say, seconds=0.02)
    meter = Meter()
    before = current_meter.set(meter)
    await measure_pieces(PIECES, SePerContext(concurrency=2), Resources(llm=llm, judge=Chance()))
    current_meter.reset(before)
    assert llm.under_way_at_most == 2
    assert len(meter.calls) == 5
    assert sum(call.completion_tokens for call in meter.calls) == 5 * 30


async def test_no_pieces_need_no_calls() -> None:
    llm = Believer(believes=say)
    assert await measure_pieces([], SePerContext(), Resources(llm=llm, judge=Chance())) == []
    assert llm.calls == []


async def test_evidence_that_does_not_fit_does_not_affect_the_others() -> None:
    class Narrow(Believer):
        async def complete(self, messages: Any, sampling: Any) -> Any:
            if "two" in messages[1]["content"]:
                raise ContextOverflow("The prompt has 9000 tokens and the window is 2048: use fewer chunks.")
            return await super().complete(messages, sampling)

    found = await measure_pieces(PIECES, SePerContext(), Resources(llm=Narrow(believes=say), judge=Chance()))
    assert [isinstance(one, ContextOverflow) for one in found] == [False, True, False, False, False, False]
    whole = await measure_pieces(PIECES, SePerContext(), Resources(llm=Believer(believes=say), judge=Chance()))
    assert [one for one in found if isinstance(one, SePerResult)] == [whole[i] for i in (0, 2, 3, 4, 5)]


async def test_model_faults_are_retried(fast_retries: None) -> None:
    llm = Believer(believes=say, faults=[ModelFault("scripted", "timed out")] * 3)
    judge = Chance([ModelFault("judge", "timed out")])
    found = await measure_pieces(PIECES[:1], SePerContext(), Resources(llm=llm, judge=judge))
    whole = await measure_pieces(PIECES[:1], SePerContext(), Resources(llm=Believer(believes=say), judge=Chance()))
    assert found == whole
    assert len(llm.calls) == 5


async def test_a_lasting_fault_is_raised(fast_retries: None) -> None:
    judge = Chance([ModelFault("judge", "timed out")] * 9)
    with pytest.raises(ModelUnavailable, match="judge did not answer after 4 attempts"):
        await measure_pieces(PIECES[:1], SePerContext(), Resources(llm=Believer(believes=say), judge=judge))
    assert len(judge.asked) == 4


async def test_a_fault_cancels_the_other_requests() -> None:
    class Broken(Believer):
        async def complete(self, messages: Any, sampling: Any) -> Any:
            if "two" in messages[1]["content"]:
                raise UserFault("The key was refused: give another.")
            try:
                await asyncio.Event().wait()
            finally:
                self.calls.append(("given up", []))

    llm = Broken()
    with pytest.raises(UserFault, match="key"):
        await measure_pieces(PIECES, SePerContext(), Resources(llm=llm, judge=Chance()))
    await asyncio.sleep(0)
    assert llm.calls == [("given up", [])] * 4


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        (Piece("", ("Ada",)), "question is empty"),
        (Piece("who?", ()), "no right answer"),
        (Piece("who?", ("",)), "Right answer 1 is no text"),
    ],
)
async def test_bad_pieces_are_refused_before_any_model_is_called(piece: Piece, message: str) -> None:
    llm = Believer(believes=say)
    with pytest.raises(UserFault, match=message):
        await measure_pieces([PIECES[0], piece], SePerContext(), Resources(llm=llm, judge=Chance()))
    assert llm.calls == []


async def test_a_model_without_log_probabilities_is_refused() -> None:
    llm = Believer(believes=say, capabilities=frozenset())
    with pytest.raises(CapabilityMissing, match="log-probabilities of its own tokens"):
        await measure_pieces(PIECES, SePerContext(), Resources(llm=llm, judge=Chance()))
