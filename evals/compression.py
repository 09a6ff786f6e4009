"""Compress evidence: remove its least informative sentences, or the tokens that matter least to the question.

After Selective Context (Li et al. 2023) and LongLLMLingua (Jiang et al. 2024); SePer, section 5.4 and appendix D.1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..concurrency import gather_or_cancel
from ..errors import CapabilityMissing, UserFault
from ..models.interfaces import ChatModel, Token
from ..prompts import break_chat_marks, unparsed
from ..retrieval.sentences import sentences
from ..state.records import Chunk

Compression = Literal["selective_context", "question_aware"]

Informed = Sequence[tuple[str, float]]
"""A text's sentences with their self-information, nats."""

RATIO_RANGE = 0.3
"""How much more than the share the most relevant chunk keeps (δτ), if the share leaves room for it."""


@dataclass(frozen=True, slots=True)
class Contrasted:
    """What a text has to do with a question.

    relevance: the mean log-probability of the question's tokens after the text, nats (r of LongLLMLingua).
    tokens: the text's tokens, each with how much likelier the question makes it, nats (s, the contrastive perplexity).
    """

    relevance: float
    tokens: Sequence[tuple[str, float]]


async def informed(texts: Sequence[str], llm: ChatModel) -> Mapping[str, Informed]:
    """The sentences of each text with their self-information: −Σ log p over the sentence's tokens, in nats.

    p is the probability under the chat model, given the text before the token. Raises `CapabilityMissing` for a model
    that cannot score.
    """
    _check_scores(llm)
    distinct = list(dict.fromkeys(texts))
    scores = await gather_or_cancel(llm.score(unparsed.self_information(), [text]) for text in distinct)
    # the tokens are those of the text that the model was given, without marks of chat templates
    return {
        text: self_informations(break_chat_marks(text), score.continuations[0])
        for text, score in zip(distinct, scores, strict=True)
    }


async def contrasted(question: str, texts: Sequence[str], llm: ChatModel) -> Mapping[str, Contrasted]:
    """What each text has to do with the question, under the chat model; see `Contrasted`.

    s_i = log p(x_i | question, x_<i) − log p(x_i | x_<i). The paper's appendix writes perplexities, whose logarithms
    these are. Three requests a text. Raises `CapabilityMissing` for a model that cannot score.
    """
    _check_scores(llm)
    distinct = list(dict.fromkeys(texts))

    async def contrast(text: str) -> Contrasted:
        relevance, alone, asked = await gather_or_cancel(
            [
                llm.score(unparsed.query_likelihood(text), [question]),
                llm.score(unparsed.self_information(), [text]),
                llm.score(unparsed.question_information(question), [text]),
            ]
        )
        pairs = zip(alone.continuations[0], asked.continuations[0], strict=True)
        return Contrasted(relevance.means[0], [(one.text, other.logprob - one.logprob) for one, other in pairs])

    return dict(zip(distinct, await gather_or_cancel(contrast(text) for text in distinct), strict=True))


def question_compressed(chunks: Sequence[Chunk], contrasts: Mapping[str, Contrasted], keep: float) -> list[Chunk]:
    """The chunks with only the tokens that the question makes likeliest, the most relevant chunk first.

    contrasts: by the text of each chunk. keep: the share of tokens that stays, in (0, 1]. The chunk of rank I of K,
    from 0, keeps the share keep + (1 − 2I/K) δτ of its tokens, rounded up, within [0, 1]; δτ is `RATIO_RANGE`, or 1 −
    keep if that is less. Of equal tokens the first ones stay. Emptied chunks go.
    """
    check_share(keep)
    ranked = sorted(chunks, key=lambda chunk: -contrasts[chunk["text"]].relevance)
    spread = min(RATIO_RANGE, 1 - keep)
    texts = []
    for rank, chunk in enumerate(ranked):
        tokens = contrasts[chunk["text"]].tokens
        share = max(0.0, min(1.0, keep + (1 - 2 * rank / len(ranked)) * spread))
        count = math.ceil(round(share * len(tokens), 6))
        kept = set(sorted(range(len(tokens)), key=lambda place: -tokens[place][1])[:count])
        texts.append("".join(text for place, (text, _) in enumerate(tokens) if place in kept).strip())
    return [{**chunk, "text": text} for chunk, text in zip(ranked, texts, strict=True) if text]


def check_share(keep: float) -> None:
    """Refuse a share of sentences or tokens that is not above 0 and at most 1."""
    if not 0 < keep <= 1:
        raise UserFault(
            f"The share of sentences or tokens to keep is {keep:g}: give a number above 0, at most 1, such as 0.5."
        )


def _check_scores(llm: ChatModel) -> None:
    if "score" not in llm.capabilities:
        raise CapabilityMissing(
            f"The chat model '{llm.name}' has no score, which compression needs: use a vllm:, hf:, gguf: or embedded "
            "model, or leave the compression out."
        )


def self_informations(text: str, tokens: Sequence[Token]) -> Informed:
    """The sentences of a text with their self-information, from the text's tokens.

    A token belongs to the sentence in which it begins. White space before a sentence belongs to the sentence before.
    """
    spans = sentences(text)
    information = [0.0] * len(spans)
    position = sentence = 0
    for token in tokens:
        begins_at = position + len(token.text) - len(token.text.lstrip())
        while sentence + 1 < len(spans) and begins_at >= spans[sentence][1]:
            sentence += 1
        information[sentence] -= token.logprob
        position += len(token.text)
    return [(text[start:end], nats) for (start, end), nats in zip(spans, information, strict=True)]


def compressed(chunks: Sequence[Chunk], information: Mapping[str, Informed], keep: float) -> list[Chunk]:
    """The chunks with only the most informative sentences of all chunks, in their order, without emptied chunks.

    information: by the text of each chunk; keep: the share of all sentences that stay, in (0, 1], rounded up; of
    equally informative sentences the first ones stay.
    """
    check_share(keep)
    units = [information[chunk["text"]] for chunk in chunks]
    ranked = [(nats, place, i) for place, unit in enumerate(units) for i, (_, nats) in enumerate(unit)]
    count = math.ceil(round(keep * len(ranked), 6))  # rounding errors must not lift a whole number
    kept = {(place, i) for _, place, i in sorted(ranked, key=lambda sentence: -sentence[0])[:count]}
    texts = [
        "".join(text for i, (text, _) in enumerate(unit) if (place, i) in kept).strip()
        for place, unit in enumerate(units)
    ]
    return [{**chunk, "text": text} for chunk, text in zip(chunks, texts, strict=True) if text]
