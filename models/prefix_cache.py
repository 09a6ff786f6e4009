"""Keys and values of recent prompts: a beginning that prompts share is read once."""

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
    """The keys and values of recent prompts, within a memory limit; the least recently used go first."""

    def __init__(self, most_bytes: float) -> None:
        """most_bytes: the limit for all keys and values; 0 keeps none."""
        self._most_bytes = most_bytes
        self._kept: list[_Prompt] = []

    @property
    def nbytes(self) -> int:
        """The memory of all keys and values."""
        return sum(prompt.nbytes for prompt in self._kept)

    def longest(self, prompt: Sequence[int]) -> tuple[int, Layers]:
        """The longest kept beginning of a prompt: its length, and views of its keys and values (one row).

        It never includes the prompt's last token, which must be read for the logits of the next token.
        """
        ids = np.asarray(prompt[:-1], np.int64)
        length, best = max(((_shared(kept.ids, ids), i) for i, kept in enumerate(self._kept)), default=(0, 0))
        if length == 0:
            return 0, []
        used = self._kept.pop(best)
        self._kept.append(used)
        return length, [(keys[:, :, :length], values[:, :, :length]) for keys, values in used.layers]

    def keep(self, prompt: Sequence[int], layers: Layers) -> None:
        """Keep a prompt's keys and values (one row); they must not be changed afterwards."""
        nbytes = sum(part.nbytes for layer in layers for part in layer)
        if nbytes > self._most_bytes:
            return
        ids = np.asarray(prompt, np.int64)
        # prompts that this one begins with are no longer needed
        self._kept = [kept for kept in self._kept if _shared(kept.ids, ids) < len(kept.ids)]
        self._kept.append(_Prompt(ids, layers, nbytes))
        while self.nbytes > self._most_bytes:
            del self._kept[0]


def _shared(first: Ids, second: Ids) -> int:
    """The number of tokens in the common beginning of two prompts."""
    most = min(len(first), len(second))
    differing = np.flatnonzero(first[:most] != second[:most])
    return int(differing[0]) if len(differing) else most
