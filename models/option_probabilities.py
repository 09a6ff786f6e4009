"""From a reply's tokens and their alternatives to a probability for each of several options: arithmetic only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def option_masses(
    positions: list[dict[str, Any]], options: list[str], *, loose: bool = False
) -> tuple[dict[str, float], dict[tuple[str, ...], float]]:
    """The probability that a reply's tokens and their alternatives give to each option, and to groups of options.

    Follows the reply while its beginning is shared by several options. An alternative to one of its tokens that leaves
    one option possible has its probability added to that; one that leaves several, to their group; one that ends a
    complete option (an end mark, say), to that. The rest of the probability belongs to no option, or was not told, or
    is that of a token without text, which vLLM gives for the first part of a character.
    loose: letter case and the space around a reply do not matter.
    """

    def fold(text: str) -> str:
        return text.lstrip().casefold() if loose else text

    def trim(text: str) -> str:
        return fold(text).rstrip() if loose else text

    masses, reach, said, left = dict.fromkeys(options, 0.0), 1.0, "", options
    shared: dict[tuple[str, ...], float] = {}
    for position in positions:
        alternatives = list(position.get("top_logprobs") or [])
        if all(a["token"] != position["token"] for a in alternatives):
            alternatives.append(position)
        complete = [o for o in left if trim(o) == trim(said)]
        followed = 0.0
        for alternative in alternatives:
            text, probability = alternative["token"], reach * math.exp(alternative["logprob"])
            begun = tuple(o for o in left if text and trim(o).startswith(fold(said + text)))
            if len(begun) > 1 and text == position["token"]:
                followed = probability
            elif len(begun) > 1 and probability > 0:
                shared[begun] = shared.get(begun, 0.0) + probability
            elif owner := begun or (complete if text or loose else ()):
                masses[owner[0]] += probability
        if not followed:
            return masses, shared
        reach, said = followed, said + position["token"]
        left = [o for o in left if trim(o).startswith(fold(said))]
    return masses, {**shared, tuple(left): reach}


def told_apart(paths: Mapping[str, Sequence[int]], logs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The probability of each option when decoding is confined to them: theirs share it at each token they differ in.

    paths: each option's token ids, the end mark last; logs: the log-probability of each of these.
    """
    branches: dict[tuple[int, ...], dict[int, float]] = {}
    for option, path in paths.items():
        for i, token in enumerate(path):
            branches.setdefault(tuple(path[:i]), {})[token] = logs[option][i]

    def share(path: Sequence[int], i: int) -> float:
        rivals = branches[tuple(path[:i])]
        top = max(rivals.values())
        return math.exp(rivals[path[i]] - top) / sum(math.exp(log - top) for log in rivals.values())

    return normalised({o: math.prod(share(path, i) for i in range(len(path))) for o, path in paths.items()})


def normalised(masses: Mapping[str, float]) -> dict[str, float]:
    """The same masses, summing to 1."""
    total = sum(masses.values())
    return {option: mass / total for option, mass in masses.items()}
