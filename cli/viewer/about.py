"""What each technique does, for a reader who does not know its paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """A technique's name as its paper writes it, and in a few sentences what it does and what its figures say."""

    name: str
    what: str


ABOUT: Mapping[str, About] = {
    "vanilla_rag": About(
        "Plain RAG", "It looks up chunks for the question once, and the model answers from what was found."
    ),
    "df_rag": About(
        "DF-RAG",
        "It plans the question in steps, then selects chunks at ten levels of diversity λ: at 1 the most similar to "
        "the question, the lower the more they differ from one another. The model says how well each selection "
        "supports every step. The answer is made from the selection of λ*, the level with the most support.",
    ),
    "dense": About(
        "DENSE",
        "It measures how certain an answer is. Each chunk in turn is put in other words and the question is asked "
        "again. Where the answers keep saying the same, the DSE (degree-based semantic entropy) is 0 and the answer "
        "certain; it grows the more they differ, up to the logarithm of their number.",
    ),
    "dense_rag": About(
        "DENSE-RAG",
        "It measures how certain the answer is (DSE: 0 where the answers agree however a chunk is worded) and mends "
        "the context where it is not. A chunk is certain if its wording does not matter, else necessary if the answer "
        "changes without it, else unnecessary. Unnecessary ones are dropped, ones like the necessary are added.",
    ),
    "sunar": About(
        "SUNAR",
        "It asks smaller questions one after another, each built on the answers so far. Every look-up begins with a "
        "search and goes on among the neighbours of the best documents. In the end all evidence is read once more.",
    ),
    "neighbourhood": About(
        "SUNAR's retrieval",
        "It begins with a search and goes on among the neighbours of the best documents, a batch at a time, until its "
        "budget is spent.",
    ),
    "seakr": About(
        "SeaKR",
        "It writes its reasoning a sentence at a time and measures how uncertain the model is of each (U, without a "
        "unit: the higher, the more its samples scatter). Above the threshold δ it searches, and keeps the snippet "
        "that leaves U lowest. Two answers are made in the end, from the sentences and from the snippets; the one of "
        "lower U stands.",
    ),
    "cot": About("Chain of thought", "It reasons a sentence at a time and looks nothing up."),
    "ircot": About(
        "IRCoT", "It reasons a sentence at a time and searches before each, for what the last sentence said."
    ),
    "flare": About(
        "FLARE",
        "It reasons a sentence at a time. Where a word of the next sentence is unlikely, it searches for the rest of "
        "that sentence and writes it anew.",
    ),
    "iter_retgen": About(
        "ITER-RETGEN",
        "It answers in rounds. Each searches for the question together with the reasoning of the round before.",
    ),
    "seper": About(
        "SePer",
        "It measures what the chunks are worth: the model answers several times with them and without. SePer is its "
        "belief in the right answer, from 0 to 1: the weights of the answers that a judge finds to say the same. "
        "ΔSePer is the belief with the chunks less the belief without.",
    ),
}
"""By graph name. A graph of somebody else's has none."""
