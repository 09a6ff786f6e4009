"""Option probabilities from the tokens of a reply and their alternatives."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

OptionMasses = tuple[dict[str, float], dict[tuple[str, ...], float]]
"""By option, and by group of options."""


def option_masses(positions: list[dict[str, Any]], options: list[str], *, loose: bool = False) -> OptionMasses:
    """The probability that a reply's tokens and their alternatives give to each option, and to groups of options.

    The reply is followed as long as several options begin with it. The probability of an alternative token goes to the
    option that it leaves possible, to the group of options if it leaves several, or to the complete option that it ends
    (an end mark, say). The remaining probability belongs to no option, was not returned, or is that of a token without
    text, which vLLM returns for the first part of a character.
    loose: ignore case and surrounding white space.
    """

    def fold(part: str) -> str:
        return part.lstrip().casefold() if loose else part

    def trim(part: str) -> str:
        return fold(part).rstrip() if loose else part

    masses, reach, text, left = dict.fromkeys(options, 0.0), 1.0, "", options
    shared: dict[tuple[str, ...], float] = {}
    for position in positions:
        alternatives = list(position.get("top_logprobs") or [])
        if all(a["token"] != position["token"] for a in alternatives):
            alternatives.append(position)
        complete = [o for o in left if trim(o) == trim(text)]
        followed = 0.0
        for alternative in alternatives:
            token, probability = alternative["token"], reach * math.exp(alternative["logprob"])
            begun = tuple(o for o in left if token and trim(o).startswith(fold(text + token)))
            if len(begun) > 1 and token == position["token"]:
                followed = probability
            elif len(begun) > 1 and probability > 0:
                shared[begun] = shared.get(begun, 0.0) + probability
            elif owner := begun or (complete if token or loose else ()):
                masses[owner[0]] += probability
        if not followed:
            return masses, shared
        reach, text = followed, text + position["token"]
        left = [o for o in left if trim(o).startswith(fold(text))]
    return masses, {**shared, tuple(left): reach}


def told_apart(paths: Mapping[str, Sequence[int]], logs: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The options' probabilities under confined decoding: at each token the possible options share probability 1.

    paths: each option's token ids, end mark last; logs: their log-probabilities.
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
    """The masses, scaled to sum to 1."""
    total = sum(masses.values())
    return {option: mass / total for option, mass in masses.items()}
