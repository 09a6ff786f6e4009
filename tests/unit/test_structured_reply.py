"""Replies in a given form: which request is kept to it."""

from collections.abc import Sequence

import pytest
from dubito.models.interfaces import Message, Reply, Sampling
from dubito.nodes.structured_reply import ask_with_retry
from dubito.prompts import plan
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
