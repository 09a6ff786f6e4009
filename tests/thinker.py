"""A model that reasons by script and is as unsure as it is told to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dubito.models.interfaces import Completion, Introspection, Message, Reply, Sampling, Token, Tokens
from dubito.tests.scripted import ScriptedChat

SURE, UNSURE = 0.0, 10.0


def score(s: float, k: int, alpha: float = 1e-3) -> float:
    """U of k equal rows s · [1, -1], worked out from the eigenvalues α (k − 1 times) and α + 2 k s²."""
    return ((k - 1) * math.log(alpha) + math.log(alpha + 2 * k * s * s)) / k


@dataclass
class Thinker(ScriptedChat):
    """Writes the sentence that `says` gives for the rationales and the question's turn; as unsure as `doubts` says.

    What is sampled where a question holds `mute` is empty.
    """

    says: Any = None
    doubts: Any = None
    mute: str = "never asked"
    capabilities: Any = frozenset({"logprobs", "hidden_states", "option_probabilities", "seed"})

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        await self._begin("complete", messages)
        text = self.says(*seen(messages))
        words = [word if number == 0 else " " + word for number, word in enumerate(text.split(" "))]
        tokens = tuple(Token(word, math.log(0.3) if "1815" in word else 0.0) for word in words)
        return Reply((Completion(text, "stop", tokens),) * sampling.n, Tokens(7, 3))

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, layer: int | None = None
    ) -> Introspection:
        await self._begin("introspect", messages)
        row = self.doubts(*seen(messages)) * np.array([1.0, -1.0])
        text = "" if self.mute in seen(messages)[1] else "something"
        reply = Reply((Completion(text, "stop"),) * sampling.n, Tokens(7, 9))
        return Introspection(reply, np.tile(row, (sampling.n, 1)).astype(np.float32), 15)


def seen(messages: Sequence[Message]) -> tuple[list[str], str]:
    """The rationales in a prompt, and the turn that asks the question."""
    last = max(i for i, one in enumerate(messages) if "Question: " in one["content"])
    rationales = [one["content"] for one in messages[last + 1 :] if one["role"] == "assistant"]
    return rationales, messages[last]["content"]
