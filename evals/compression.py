"""Compress evidence: remove its least informative sentences (after Selective Context, Li et al. 2023)."""

import math
from collections.abc import Mapping, Sequence

from ..concurrency import gather_or_cancel
from ..errors import CapabilityMissing, UserFault
from ..models.interfaces import ChatModel, Token
from ..prompts import break_chat_marks, unparsed
from ..retrieval.sentences import sentences
from ..state.records import Chunk

Informed = Sequence[tuple[str, float]]
"""A text's sentences with their self-information, nats."""


async def informed(texts: Sequence[str], llm: ChatModel) -> Mapping[str, Informed]:
    """The sentences of each text with their self-information: −Σ log p over the sentence's tokens, in nats.

    p is the probability under the chat model, given the text before the token. Raises `CapabilityMissing` for a model
    that cannot score.
    """
    if "score" not in llm.capabilities:
        raise CapabilityMissing(
            f"The chat model '{llm.name}' has no score, which compression needs: use a vllm:, hf:, gguf: or embedded "
            "model, or leave the compression out."
        )
    distinct = list(dict.fromkeys(texts))
    scores = await gather_or_cancel(llm.score(unparsed.self_information(), [text]) for text in distinct)
    # the tokens are those of the text that the model was given, without marks of chat templates
    return {
        text: self_informations(break_chat_marks(text), score.continuations[0])
        for text, score in zip(distinct, scores, strict=True)
    }


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
    if not 0 < keep <= 1:
        raise UserFault(f"The share of sentences to keep is {keep:g}: give a number above 0, at most 1, such as 0.5.")
    units = [information[chunk["text"]] for chunk in chunks]
    ranked = [(nats, place, i) for place, unit in enumerate(units) for i, (_, nats) in enumerate(unit)]
    count = math.ceil(round(keep * len(ranked), 6))  # rounding errors must not lift a whole number
    kept = {(place, i) for _, place, i in sorted(ranked, key=lambda sentence: -sentence[0])[:count]}
    texts = [
        "".join(text for i, (text, _) in enumerate(unit) if (place, i) in kept).strip()
        for place, unit in enumerate(units)
    ]
    return [{**chunk, "text": text} for chunk, text in zip(chunks, texts, strict=True) if text]
