"""Evidence made shorter: its least informative sentences left out (the idea of Selective Context, Li et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..errors import CapabilityMissing, UserFault
from ..models.interfaces import ChatModel, Token
from ..prompts import self_information
from ..retrieval.sentences import sentences
from ..state.records import Chunk
from .seper import together

Informed = Sequence[tuple[str, float]]
"""A text's sentences with their self-information, nats."""


async def informed(texts: Sequence[str], llm: ChatModel) -> Mapping[str, Informed]:
    """The sentences of each text and what each says: −Σ log p over its tokens, given the text before it, in nats.

    Under the chat model that is served, by its `score`; each text is scored once. Raises `CapabilityMissing` for a
    model that cannot score.
    """
    if "score" not in llm.capabilities:
        raise CapabilityMissing(
            f"The chat model '{llm.name}' has no score, which compression needs: use a vllm:, hf:, gguf: or embedded "
            "model, or leave the compression out."
        )
    distinct = list(dict.fromkeys(texts))
    scored = await together(llm.score(self_information.messages(), [text]) for text in distinct)
    return {text: self_informations(text, found.continuations[0]) for text, found in zip(distinct, scored, strict=True)}


def self_informations(text: str, tokens: Sequence[Token]) -> Informed:
    """The sentences of a text with their self-information, from the text's tokens.

    A token counts for the sentence it begins in; white space before a sentence for the one before.
    """
    spans = sentences(text)
    found = [0.0] * len(spans)
    at = place = 0
    for token in tokens:
        while place + 1 < len(spans) and at + len(token.text) - len(token.text.lstrip()) >= spans[place][1]:
            place += 1
        found[place] -= token.logprob
        at += len(token.text)
    return [(text[start:end], one) for (start, end), one in zip(spans, found, strict=True)]


def compressed(chunks: Sequence[Chunk], information: Mapping[str, Informed], keep: float) -> list[Chunk]:
    """The chunks with the most informative sentences of them all, in their order; chunks of which none is left go.

    information: of each chunk's text. keep: the share of the sentences that stay, above 0 to 1, rounded up; of equally
    informative ones those that come first.
    """
    if not 0 < keep <= 1:
        raise UserFault(f"The share of sentences to keep is {keep:g}: give a number above 0, at most 1, such as 0.5.")
    units = [information[chunk["text"]] for chunk in chunks]
    found = [(place, i, one) for place, some in enumerate(units) for i, (_, one) in enumerate(some)]
    wanted = math.ceil(round(keep * len(found), 6))  # which rounding must not lift above a whole number
    kept = {(place, i) for place, i, _ in sorted(found, key=lambda each: -each[2])[:wanted]}
    texts = [
        "".join(text for i, (text, _) in enumerate(some) if (place, i) in kept).strip()
        for place, some in enumerate(units)
    ]
    return [{**chunk, "text": text} for chunk, text in zip(chunks, texts, strict=True) if text]
