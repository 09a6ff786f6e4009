"""How far a model believes the right answer: sampled responses, what a judge says of them, SePer (Dai et al., 3.3-3.4).

For one measurement (the graph `seper`) and for many at once (`evals.seper`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..errors import ContractFault, UserFault
from ..models.answer_text import normalised
from ..models.interfaces import ChatModel, Completion, Judge, Sampling
from ..prompts import answer as prompt
from ..state.records import Chunk
from ..state.seper import Belief, Cluster, Judged, Sampled, SePerContext
from ..uncertainty import gold_matches, response_weights, semantic_clusters, seper_hard, seper_soft
from .relations import Pairs, Relation, label_of

NO_GOLDS = (
    'There is no right answer to measure the belief in: give "answers": ["..."] with one text or more '
    "(on the command line --answer)."
)

Rows = list[list[list[float] | None]]


def right_answers(given: object) -> list[str]:
    """The right answers, each once, whatever its case and punctuation; `UserFault` where there is none."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise UserFault(NO_GOLDS)
    for number, one in enumerate(given, 1):
        if not isinstance(one, str) or not one.strip():
            raise UserFault(f"Right answer {number} is no text: give texts that are not empty.")
    if not given:
        raise UserFault(NO_GOLDS)
    golds: dict[str, str] = {}
    for one in given:
        golds.setdefault(normalised(one), one.strip())
    return list(golds.values())


async def sampled(
    question: str, chunks: Sequence[Chunk], context: SePerContext, llm: ChatModel
) -> tuple[list[Sampled], list[str]]:
    """n responses to the question, from chunks or from none, with their weights; and what is to be said of them."""
    sampling = Sampling(
        n=context.n,
        temperature=context.temperature,
        max_tokens=context.max_answer_tokens,
        logprobs=True,
        thinking=context.thinking,
    )
    found = (await llm.complete(prompt.messages(question, chunks), sampling)).completions
    logs = [[token.logprob for token in one.tokens] for one in found]
    weights = response_weights(logs, context.likelihood).tolist()
    responses = [_sampled(*each) for each in zip(found, logs, weights, strict=True)]
    return responses, _warnings(responses, "with" if chunks else "without", context)


def pairs_of(responses: Sequence[Sampled], golds: Sequence[str], context: SePerContext) -> Pairs:
    """What the judge has to be asked: towards the right answers, back where that counts, and between responses."""
    texts = [one["text"] for one in responses]
    pairs = [(text, gold) for text in texts for gold in golds]
    if _both_ways(context):
        pairs += [(gold, text) for text in texts for gold in golds]
    if context.rule == "hard":
        pairs += [(one, other) for one in texts for other in texts]
    return Pairs(pairs)


def judged_of(responses: Sequence[Sampled], golds: Sequence[str], relation: Relation, context: SePerContext) -> Judged:
    """What the judge says, as the state keeps it."""

    def row(one: str, other: str) -> list[float] | None:
        said = relation(one, other)
        return said.tolist() if np.isfinite(said).all() else None

    texts = [one["text"] for one in responses]
    back, between = _both_ways(context), context.rule == "hard"
    return {
        "forward": [[row(text, gold) for gold in golds] for text in texts],
        "backward": [[row(gold, text) for gold in golds] for text in texts] if back else [],
        "between": [[row(one, other) for other in texts] for one in texts] if between else [],
    }


def unsaid(judge: Judge, judged: Sequence[Judged]) -> list[str]:
    """A warning where the judge could not say."""
    tables = [table for one in judged for table in (one["forward"], one["backward"], one["between"])]
    count = sum(row is None for table in tables for rows in table for row in rows)
    if not count:
        return []
    return [f"The judge '{judge.name}' could not say of {count} pairs of answers; they count as neutral."]


def belief_of(responses: Sequence[Sampled], judged: Judged, context: SePerContext) -> Belief:
    """SePer by the context's rule, and what it is made of."""
    entails, entailed = _entailment(judged["forward"]), _entailment(judged["backward"])
    ids = _meanings(judged, context) if context.rule == "hard" else None
    matches = None if ids is None else _matches(judged, ids, context)

    def belief(answers: Sequence[int]) -> float:
        """In these of the right answers."""
        weights = [one["weight"] for one in responses]
        if ids is not None and matches is not None:
            return seper_hard(weights, ids, matches[:, answers], context.golds)
        back = _numbers(entailed)[:, answers] if entailed else None
        return seper_soft(weights, _numbers(entails)[:, answers], back, context.golds)

    every = range(len(entails[0]))
    return {
        "seper": belief(every),
        "by_answer": [belief([answer]) for answer in every],
        "responses": [
            {
                **one,
                "entails": entails[i],
                "entailed": entailed[i] if entailed else [],
                "cluster": ids[i] if ids else None,
            }
            for i, one in enumerate(responses)
        ],
        "clusters": [] if ids is None or matches is None else _clusters(responses, ids, matches),
    }


def likeliest(responses: Sequence[Sampled]) -> str:
    """The wording that weighs most, as it was first written; nothing where every response is empty."""
    weights: dict[str, float] = {}
    wordings: dict[str, str] = {}
    for one in responses:
        if one["text"]:
            form = normalised(one["text"])
            wordings.setdefault(form, one["text"])
            weights[form] = weights.get(form, 0.0) + one["weight"]
    return wordings[max(weights, key=lambda form: weights[form])] if weights else ""


def _sampled(one: Completion, logs: Sequence[float], weight: float) -> Sampled:
    total = math.fsum(logs)
    return {
        "text": _read(one.text),
        "log_probability": total if logs and math.isfinite(total) else None,
        "tokens": len(logs),
        "weight": weight,
        "cut": one.finish_reason == "length",
    }


def _read(text: str) -> str:
    try:
        return prompt.parse(text)
    except ContractFault:
        return ""


def _warnings(responses: Sequence[Sampled], side: str, context: SePerContext) -> list[str]:
    where = f"sampled {side} the chunks"
    warnings = []
    if not any(one["text"] for one in responses):
        warnings.append(f"Every response {where} is empty; they are no belief in any answer.")
    if any(one["cut"] for one in responses):
        warnings.append(
            f"Some responses {where} were cut off at {context.max_answer_tokens} tokens: a larger max_answer_tokens "
            "lets them end."
        )
    return warnings


def _both_ways(context: SePerContext) -> bool:
    return context.rule == "hard" or context.direction == "either"


def _entailment(rows: Rows) -> list[list[float | None]]:
    return [[None if row is None else row[0] for row in some] for some in rows]


def _numbers(probabilities: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    return np.array(probabilities, dtype=np.float64)  # of None it makes NaN


def _labelled(rows: Rows, label: str) -> NDArray[np.bool_]:
    """Whether each pair's likeliest label is this one."""
    return np.array([[row is not None and label_of(np.array(row)) == label for row in some] for some in rows])


def _meanings(judged: Judged, context: SePerContext) -> list[int]:
    """The clusters of the responses, [n]."""
    entails, contradicts = (_labelled(judged["between"], label) for label in ("entailment", "contradiction"))
    return semantic_clusters(entails, context.clusters, contradicts=contradicts)


def _matches(judged: Judged, ids: Sequence[int], context: SePerContext) -> NDArray[np.bool_]:
    """Which cluster matches which right answer, [clusters, a], by its first member."""
    firsts = [ids.index(cluster) for cluster in range(max(ids) + 1)]

    def both(label: str) -> NDArray[np.bool_]:
        return np.stack([_labelled(judged[way], label)[firsts] for way in ("forward", "backward")])

    return gold_matches(both("entailment"), both("contradiction"), context.match)


def _clusters(responses: Sequence[Sampled], ids: Sequence[int], matches: NDArray[np.bool_]) -> list[Cluster]:
    return [
        {
            "first": responses[ids.index(cluster)]["text"],
            "weight": math.fsum(one["weight"] for one, own in zip(responses, ids, strict=True) if own == cluster),
            "matches": found.tolist(),
        }
        for cluster, found in enumerate(matches)
    ]
