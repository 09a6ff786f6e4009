"""Keys and values of the prompts read last, so that what prompts have in common is read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .generation import Layers

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Prompt:
    ids: Ids
    layers: Layers
    nbytes: int


class PrefixCache:
    """The prompts read last, as far as their keys and values fit; those that were of no use for longest go first."""

    def __init__(self, most_bytes: float) -> None:
        """most_bytes: what all keys and values together may take; 0 keeps none."""
        self._most_bytes = most_bytes
        self._kept: list[_Prompt] = []

    @property
    def nbytes(self) -> int:
        """What the keys and values take now."""
        return sum(one.nbytes for one in self._kept)

    def longest(self, prompt: Sequence[int]) -> tuple[int, Layers]:
        """The longest kept start of a prompt: its length, and its keys and values as views, one row.

        The last token is never part of it: reading that one gives the logits of the next.
        """
        ids = np.asarray(prompt[:-1], np.int64)
        length, best = max(((_shared(one.ids, ids), i) for i, one in enumerate(self._kept)), default=(0, 0))
        if length == 0:
            return 0, []
        found = self._kept.pop(best)
        self._kept.append(found)
        return length, [(keys[:, :, :length], values[:, :, :length]) for keys, values in found.layers]

    def keep(self, prompt: Sequence[int], layers: Layers) -> None:
        """Keep what was read of a prompt, one row, which nobody may write to from now on."""
        nbytes = sum(part.nbytes for layer in layers for part in layer)
        if nbytes > self._most_bytes:
            return
        ids = np.asarray(prompt, np.int64)
        # what begins this prompt is found in it
        self._kept = [one for one in self._kept if _shared(one.ids, ids) < len(one.ids)]
        self._kept.append(_Prompt(ids, layers, nbytes))
        while self.nbytes > self._most_bytes:
            del self._kept[0]


def _shared(one: Ids, other: Ids) -> int:
    """How many tokens two prompts begin with in common."""
    most = min(len(one), len(other))
    differing = np.flatnonzero(one[:most] != other[:most])
    return int(differing[0]) if len(differing) else most
