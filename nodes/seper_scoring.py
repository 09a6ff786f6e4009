"""SePer's three steps: sample responses, judge them against the right answers, score the belief (Dai et al., 3.3-3.4).

The graph `seper` takes them for one measurement, `evals.seper` for many measurements in one batch.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import UserFault
from ..models.interfaces import ChatModel, Completion, Judge
from ..prompts import answer as prompt
from ..state.answer_text import normalised
from ..state.records import Chunk
from ..state.seper import LIKELIEST, Belief, Cluster, ResponseJudgements, SampledResponse, SePerContext
from ..uncertainty import gold_matches, response_weights, semantic_clusters, seper_hard, seper_soft
from .entailment_pairs import AnswerPairs, PairProbabilities, is_judged, judge_pairs, likeliest_label
from .generate import sampled_answers

NO_RIGHT_ANSWER = 'There is no right answer to measure the belief in: give "answers": ["..."] with at least one text.'

Labelled = list[list[list[float] | None]]
"""Label probabilities of a table of answer pairs; null for a pair that the judge could not label."""


def distinct_answers(answers: object) -> list[str]:
    """The right answers without repetitions; case, articles, punctuation and white space make no difference.

    Raises `UserFault` unless there is at least one answer and each is a text that is not empty.
    """
    if isinstance(answers, str) or not isinstance(answers, Sequence) or not answers:
        raise UserFault(NO_RIGHT_ANSWER)
    distinct: dict[str, str] = {}
    for number, answer in enumerate(answers, 1):
        if not isinstance(answer, str) or not answer.strip():
            raise UserFault(f"Right answer {number} is no text: give texts that are not empty.")
        distinct.setdefault(normalised(answer), answer.strip())
    return list(distinct.values())


async def sample_side(
    question: str, chunks: Sequence[Chunk], context: SePerContext, llm: ChatModel
) -> tuple[list[SampledResponse], list[str]]:
    """n responses to the question from the chunks, or without chunks, sampled in one request; and warnings."""
    sampling = replace(
        sampled_answers(context), top_p=context.top_p, top_k=context.top_k, stop=context.stop_texts, logprobs=True
    )
    completions = (await llm.complete(prompt.messages(question, chunks), sampling)).completions
    logs = [_log_probs(completion, context) for completion in completions]
    weights = response_weights(logs, context.likelihood).tolist()
    responses = [_response(*parts) for parts in zip(completions, logs, weights, strict=True)]
    reasons = list(dict.fromkeys(completion.why_empty for completion in completions if completion.why_empty))
    return responses, _warnings(responses, "with" if chunks else "without", reasons, context)


async def judge_sides(
    judge: Judge,
    question: str,
    sides: Sequence[tuple[Sequence[SampledResponse], Sequence[str]]],
    context: SePerContext,
) -> list[ResponseJudgements]:
    """The judgements of each side, in one call of the judge; each distinct pair of answers is judged once.

    sides: responses to the question and the right answers they are judged against.
    """
    texts = [([response["text"] for response in responses], answers) for responses, answers in sides]
    pairs = [AnswerPairs(_pairs(responses, answers, context)) for responses, answers in texts]
    if context.question_mark and not question.endswith("?"):
        question += "?"
    judged = await judge_pairs(judge, question, pairs)
    return [_judgements(*side, probabilities, context) for side, probabilities in zip(texts, judged, strict=True)]


def unlabelled_warnings(judge: Judge, judgements: Sequence[ResponseJudgements]) -> list[str]:
    """A warning with the number of pairs that the judge could not label."""
    tables = [table for side in judgements for table in (side["forward"], side["backward"], side["between"])]
    count = sum(label is None for table in tables for row in table for label in row)
    if not count:
        return []
    return [f"The judge '{judge.name}' could not label {count} pairs of answers; they count as neutral."]


def belief_of(responses: Sequence[SampledResponse], judgements: ResponseJudgements, context: SePerContext) -> Belief:
    """SePer by the context's rule, with the responses and clusters it comes from."""
    weights = [response["weight"] for response in responses]
    entails, entailed = _entailment(judgements["forward"]), _entailment(judgements["backward"])
    clusters, matches = _semantic_clusters(judgements, context) if context.rule == "hard" else (None, None)

    def seper(answers: Sequence[int]) -> float:
        if clusters is not None and matches is not None:
            return seper_hard(weights, clusters, matches[:, answers], context.several_answers)
        backward = _array(entailed)[:, answers] if entailed else None
        several = context.several_answers
        assert several != "union"  # noqa: S101 - the context refuses it with the soft rule
        return seper_soft(weights, _array(entails)[:, answers], backward, several)

    every_answer = range(len(entails[0]))
    return {
        "seper": seper(every_answer),
        "by_answer": [seper([answer]) for answer in every_answer],
        "responses": [
            {
                **response,
                "entails": entails[i],
                "entailed": entailed[i] if entailed else [],
                "cluster": clusters[i] if clusters else None,
            }
            for i, response in enumerate(responses)
        ],
        "clusters": [] if clusters is None or matches is None else _clusters(responses, clusters, matches),
    }


def likeliest_answer(responses: Sequence[SampledResponse]) -> str:
    """The answer with the greatest total weight, as its first response writes it; empty if every response is empty."""
    weights: dict[str, float] = {}
    first: dict[str, str] = {}
    for response in responses:
        if response["text"]:
            form = normalised(response["text"])
            first.setdefault(form, response["text"])
            weights[form] = weights.get(form, 0.0) + response["weight"]
    return first[max(weights, key=lambda form: weights[form])] if weights else ""


def _log_probs(completion: Completion, context: SePerContext) -> list[float]:
    logs = [token.logprob for token in completion.tokens]
    # the authors' code keeps the end-of-turn token of a response that has no other
    ends = len(logs) > 1 and completion.finish_reason == "stop" and not completion.tokens[-1].text
    return logs[:-1] if ends and not context.end_of_turn else logs


def _response(completion: Completion, logs: Sequence[float], weight: float) -> SampledResponse:
    total = math.fsum(logs)
    return {
        "text": prompt.parse_or_empty(completion.text),
        "log_probability": total if logs and math.isfinite(total) else None,
        "tokens": len(logs),
        "weight": weight,
        "cut": completion.finish_reason == "length",
    }


def _warnings(
    responses: Sequence[SampledResponse], side: str, why_empty: Sequence[str], context: SePerContext
) -> list[str]:
    sampled = f"sampled {side} the chunks"
    warnings = []
    if not any(response["text"] for response in responses):
        why = f" ({'; '.join(why_empty)})" if why_empty else ""
        warnings.append(f"Every response {sampled} is empty{why}: the belief in every answer is 0.")
    if any(response["cut"] for response in responses):
        warnings.append(
            f"Some responses {sampled} were cut off at {context.max_answer_tokens} tokens: a larger max_answer_tokens "
            "lets them end."
        )
    return warnings


def _judges_backward(context: SePerContext) -> bool:
    return context.rule == "hard" or context.direction == "either"


def _pairs(responses: Sequence[str], answers: Sequence[str], context: SePerContext) -> list[tuple[str, str]]:
    pairs = [(response, answer) for response in responses for answer in answers]
    if _judges_backward(context):
        pairs += [(answer, response) for response in responses for answer in answers]
    if context.rule == "hard":
        pairs += [(first, second) for first in responses for second in responses]
    return pairs


def _judgements(
    responses: Sequence[str], answers: Sequence[str], probabilities: PairProbabilities, context: SePerContext
) -> ResponseJudgements:
    def labels(first: str, second: str) -> list[float] | None:
        judged = probabilities(first, second)
        return judged.tolist() if is_judged(judged) else None

    judgements: ResponseJudgements = {"forward": [], "backward": [], "between": []}
    for response in responses:
        judgements["forward"].append([labels(response, answer) for answer in answers])
        if _judges_backward(context):
            judgements["backward"].append([labels(answer, response) for answer in answers])
        if context.rule == "hard":
            judgements["between"].append([labels(response, other) for other in responses])
    return judgements


def _entailment(table: Labelled) -> list[list[float | None]]:
    return [[None if labels is None else labels[0] for labels in row] for row in table]


def _array(probabilities: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    return np.array(probabilities, dtype=np.float64)  # None becomes NaN


def _is_likeliest(label: str, table: Labelled) -> NDArray[np.bool_]:
    """For each pair: is this its likeliest label?"""
    return np.array(
        [[labels is not None and likeliest_label(np.array(labels)) == label for labels in row] for row in table]
    )


def _entails(table: Labelled, context: SePerContext) -> NDArray[np.bool_]:
    """For each pair: does the first text entail the second, by the threshold τ (section 3.3)?"""
    if context.entailment_threshold == LIKELIEST:
        return _is_likeliest("entailment", table)
    # NaN, a pair that the judge could not label, is below every threshold
    return _array(_entailment(table)) >= float(context.entailment_threshold)


def _semantic_clusters(judgements: ResponseJudgements, context: SePerContext) -> tuple[list[int], NDArray[np.bool_]]:
    """The cluster of each response, [n], and which cluster matches which right answer, [clusters, a]."""
    entails, contradicts = (
        _entails(judgements["between"], context),
        _is_likeliest("contradiction", judgements["between"]),
    )
    clusters = semantic_clusters(
        entails, context.cluster_rule, contradicts=contradicts, founder=context.cluster_founder
    )
    first_members = [clusters.index(cluster) for cluster in range(max(clusters) + 1)]
    both_ways = [[judgements[way][first] for first in first_members] for way in ("forward", "backward")]
    return clusters, gold_matches(
        np.stack([_entails(way, context) for way in both_ways]),
        np.stack([_is_likeliest("contradiction", way) for way in both_ways]),
        context.match_rule,
    )


def _clusters(
    responses: Sequence[SampledResponse], clusters: Sequence[int], matches: NDArray[np.bool_]
) -> list[Cluster]:
    return [
        {
            "first": responses[clusters.index(cluster)]["text"],
            "weight": math.fsum(
                response["weight"] for response, own in zip(responses, clusters, strict=True) if own == cluster
            ),
            "matches": matched.tolist(),
        }
        for cluster, matched in enumerate(matches)
    ]
