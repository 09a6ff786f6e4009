"""A scripted model for the reasoning graphs: its sentences and its uncertainty are functions of the prompt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dubito.models.interfaces import (
    MIDDLE_LAYER,
    Completion,
    Introspection,
    Message,
    Reply,
    Sampling,
    StatePlace,
    Token,
    Tokens,
)
from dubito.tests.scripted import ScriptedChat

SURE, UNSURE = 0.0, 10.0


def score(s: float, k: int, alpha: float = 1e-3) -> float:
    """U of k equal rows s · [1, -1], from the eigenvalues α (k − 1 times) and α + 2 k s²."""
    return ((k - 1) * math.log(alpha) + math.log(alpha + 2 * k * s * s)) / k


@dataclass
class Thinker(ScriptedChat):
    """says: the next sentence, doubts: s of `score`; both of the rationales so far and the turn with the question.

    A word with "1815" has probability 0.3. Samples are empty if the question contains `mute`.
    """

    says: Callable[[list[str], str], str] = lambda rationales, question: ""
    doubts: Callable[[list[str], str], float] = lambda rationales, question: SURE
    mute: str = "never asked"
    capabilities: Any = frozenset({"logprobs", "hidden_states", "option_probabilities", "seed"})

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        await self._begin("complete", messages)
        text = self.says(*rationales_and_question(messages))
        words = [word if position == 0 else " " + word for position, word in enumerate(text.split(" "))]
        tokens = tuple(Token(word, math.log(0.3) if "1815" in word else 0.0) for word in words)
        return Reply((Completion(text, "stop", tokens),) * sampling.n, Tokens(7, 3))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        await self._begin("introspect", messages)
        rationales, question = rationales_and_question(messages)
        state = self.doubts(rationales, question) * np.array([1.0, -1.0])
        text = "" if self.mute in question else "something"
        reply = Reply((Completion(text, "stop"),) * sampling.n, Tokens(7, 9))
        return Introspection(reply, np.tile(state, (sampling.n, 1)).astype(np.float32), 15)


def rationales_and_question(messages: Sequence[Message]) -> tuple[list[str], str]:
    """The rationales in a prompt, and the turn that asks the question."""
    start = max(i for i, message in enumerate(messages) if "Question: " in message["content"])
    rationales = [message["content"] for message in messages[start + 1 :] if message["role"] == "assistant"]
    return rationales, messages[start]["content"]
