"""Replies in a given form: which request is kept to it, and how long its reply may be."""

from collections.abc import Sequence
from typing import Any

import pytest
from dubito.models.interfaces import Message, Reply, Sampling
from dubito.nodes import decompose, evaluate, rephrase
from dubito.nodes import plan as planner
from dubito.nodes.structured_reply import ask_with_retry
from dubito.prompts import plan
from dubito.resources.resources import Resources
from dubito.state.dense import DenseContext
from dubito.state.df_rag import DFRagContext
from dubito.state.sunar import SunarContext
from dubito.tests.scripted import ScriptedChat

ASK: list[Message] = [{"role": "user", "content": "Plan."}]


class Heard(ScriptedChat):
    """Keeps the pattern of every request; its first reply has no plan."""

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        self.heard = [*getattr(self, "heard", []), sampling.pattern]
        self.reply = lambda system, user: "1) Find Ada" if len(self.heard) > 1 else "No."
        return await super().complete(messages, sampling)


@pytest.mark.parametrize(
    ("can", "thinking", "heard"),
    [(True, False, [plan.pattern(8), None]), (True, True, [None, None]), (False, False, [None, None])],
)
async def test_the_first_reply_is_kept_to_the_pattern_by_a_model_that_can_and_does_not_think(
    can: bool, thinking: bool, heard: list[str | None]
) -> None:
    llm = Heard(capabilities=frozenset({"pattern"} if can else ()))
    sampling = Sampling(thinking=thinking)
    assert await ask_with_retry(llm, ASK, sampling, plan.parse, pattern=plan.pattern(8)) == ["Find Ada"]
    assert llm.heard == heard


class Lengths(ScriptedChat):
    """Keeps `max_tokens` of every request."""

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        self.lengths = [*getattr(self, "lengths", []), sampling.max_tokens]
        return await super().complete(messages, sampling)


CHUNK = {"id": "c", "doc_id": "d", "title": "T", "text": "ten bytes."}


@pytest.mark.parametrize(
    ("node", "state", "context", "longest"),
    [
        (planner.plan, {}, DFRagContext, 256),
        (evaluate.evaluate, {"plan": ["Find Ada"], "chunks": [CHUNK], "candidate": 0}, DFRagContext, 512),
        (decompose.decompose, {}, SunarContext, 96),
        (decompose.chain_of_query, {"chain": [], "chain_answer": ""}, SunarContext, 384),
        (rephrase.rephrase, {"chunk": CHUNK}, DenseContext, 69),
    ],
)
async def test_thoughts_have_room_beside_the_longest_reply(node: Any, state: Any, context: Any, longest: int) -> None:
    settings = {"evaluator": "report"} if context is DFRagContext else {}
    for thinking, most in ((False, longest), (True, longest + 1000)):
        llm = Lengths(reply=lambda system, user: "")
        chosen = context(thinking=thinking, max_answer_tokens=1000, **settings)
        await node({"question": "Who?", **state}, chosen, Resources(llm=llm))
        assert set(llm.lengths) == {most}
