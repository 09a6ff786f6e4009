"""Every graph that searches for its question can search by words, by both, and re-rank."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.graphs import dense, df_rag, iter_retgen, vanilla_rag
from dubito.models.interfaces import Vectors
from dubito.nodes.retrieve_top_k import top_k_context
from dubito.presenters.presenter import score_name
from dubito.presenters.words import measure
from dubito.resources.resources import Resources
from dubito.state.dense_rag import DenseRagContext
from dubito.state.df_rag import DFRagContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import ScriptedEncoder, ScriptedJudge, chat, unit

QUESTION = "tide weir otter"
TEXTS = {
    "all": "tide weir otter",
    "two": "tide weir marsh marsh",
    "one": "otter kelp kelp kelp kelp",
    "none": "quartz quartz quartz",
    "near": "basalt",
}
PLACES = {"all": 0.1, "two": 0.4, "one": 0.2, "none": 0.9, "near": 1.0}
"""The cosine of each text to the question: by meaning the nearest two have no word of it."""


class Placed(ScriptedEncoder):
    """An encoder that puts each text at its cosine to the question, in a plane; `texts`: what it has embedded."""

    name = "placed"

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def dimension(self) -> int:
        return 2

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        self.texts += texts
        cosines = [1.0 if query else next((PLACES[n] for n, t in TEXTS.items() if t in text), 0.5) for text in texts]
        return unit([[cosine, (1 - cosine**2) ** 0.5] for cosine in cosines])


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in TEXTS.items()))
    return str(path)


def opened() -> tuple[Resources, Placed]:
    encoder = Placed()
    return Resources(chat(), encoder, judge=ScriptedJudge()), encoder


async def ask(graph: Any, resources: Resources, **settings: Any) -> dict[str, Any]:
    """The final state."""
    context = {"chunker": "words:100", **settings}
    state: dict[str, Any] = {}
    machine = graph.build(resources).compile()
    async for state in machine.astream({"question": QUESTION}, context=context, stream_mode="values"):  # noqa: B007
        pass
    return state


def names(chunks: Sequence[Any]) -> list[str]:
    return [chunk["doc_id"] for chunk in chunks]


async def test_a_search_by_words_finds_what_has_them_and_embeds_nothing(corpus: str) -> None:
    resources, encoder = opened()
    state = await ask(vanilla_rag, resources, corpus=corpus, first_stage="bm25", k=2)
    assert names(state["evidence"]) == ["all", "two"]
    assert state["evidence"][0]["score"] > state["evidence"][1]["score"] > 0
    assert encoder.texts == []
    by_vectors = await ask(vanilla_rag, resources, corpus=corpus, k=2)
    assert names(by_vectors["evidence"]) == ["near", "none"]


async def test_a_search_that_finds_fewer_than_k_says_so(corpus: str) -> None:
    state = await ask(vanilla_rag, opened()[0], corpus=corpus, first_stage="bm25", k=4)
    assert names(state["evidence"]) == ["all", "two", "one"]
    assert state["warnings"] == ["Fewer chunks than k = 4 were found: 3. All of them are used."]


async def test_a_fusion_ranks_by_words_and_by_vectors(corpus: str) -> None:
    state = await ask(vanilla_rag, opened()[0], corpus=corpus, first_stage="hybrid", k=5)
    # ranks by words: all, two, one; by vectors: near, none, two, one, all. Sums of 1 / (60 + rank)
    sums = {"all": 1 / 61 + 1 / 65, "two": 1 / 62 + 1 / 63, "one": 1 / 63 + 1 / 64, "near": 1 / 61, "none": 1 / 62}
    assert names(state["evidence"]) == sorted(sums, key=lambda name: -sums[name])
    assert [chunk["score"] for chunk in state["evidence"]] == pytest.approx(sorted(sums.values(), reverse=True))


async def test_what_the_words_find_is_reranked_by_the_vectors(corpus: str) -> None:
    settings = {"first_stage": "bm25", "rerank_n": 3, "reranker": "embedded", "k": 2}
    state = await ask(vanilla_rag, opened()[0], corpus=corpus, **settings)
    assert names(state["first_stage"]) == ["all", "two", "one"]
    assert names(state["evidence"]) == ["two", "one"]
    assert [chunk["score"] for chunk in state["evidence"]] == pytest.approx([(1 + 0.4) / 2, (1 + 0.2) / 2], abs=1e-6)
    iterated = await ask(iter_retgen, opened()[0], corpus=corpus, max_iterations=1, **settings)
    assert names(iterated["evidence"]) == ["two", "one"]


async def test_diverse_chunks_are_selected_among_those_that_the_words_find(corpus: str) -> None:
    settings = {"first_stage": "bm25", "selection": "gmmr", "fixed_lambda": 0.9, "k": 2}
    state = await ask(vanilla_rag, opened()[0], corpus=corpus, top_n=3, **settings)
    # of all, two and one the nearest is first; gMMR = 0.9 cos(q, c) + 0.1 sqrt(2 - 2 cos(c, two))
    vectors = {name: np.array([PLACES[name], (1 - PLACES[name] ** 2) ** 0.5]) for name in ("all", "two", "one")}

    def gmmr(name: str) -> float:
        distance = (2 - 2 * float(vectors[name] @ vectors["two"])) ** 0.5
        return 0.9 * PLACES[name] + 0.1 * float(distance)

    assert names(state["evidence"]) == ["two", max(("all", "one"), key=gmmr)]
    assert state["evidence"][0]["score"] == pytest.approx(0.4, abs=1e-6)
    only = await ask(vanilla_rag, opened()[0], corpus=corpus, top_n=2, **settings)
    assert set(names(only["evidence"])) == {"all", "two"}


async def test_df_rag_makes_its_sets_from_what_the_words_find(corpus: str) -> None:
    settings = {"first_stage": "bm25", "search": "ann", "top_n": 3, "k": 2, "evaluator": "report"}
    state = await ask(df_rag, opened()[0], corpus=corpus, **settings)
    sets = [set(one["chunk_ids"]) for one in state["candidates"]]
    found = {chunk["id"] for chunk in state["chunks_by_id"].values()}
    assert sets
    assert {chunk_id.partition("#")[0] for chunk_id in found} <= {"all", "two", "one"}
    with pytest.raises(UserFault, match="first_stage=bm25 finds only a part of the chunks, and search=exact selects"):
        DFRagContext(first_stage="bm25")


async def test_dense_measures_what_the_words_find(corpus: str) -> None:
    state = await ask(dense, opened()[0], corpus=corpus, first_stage="bm25", k=2)
    assert names(state["evidence"]) == ["all", "two"]
    resources, _ = opened()
    context = DenseRagContext(corpus=corpus, chunker="words:100", first_stage="bm25", k=2)
    cut_again = await top_k_context(QUESTION, "words:2", context, resources)
    assert [chunk["text"].strip() for chunk in cut_again["context_chunks"]] == ["tide weir", "tide weir"]
    assert cut_again["total"] == sum(-(-len(text.split()) // 2) for text in TEXTS.values())


def test_the_scores_have_their_name() -> None:
    by_words = VanillaRagContext(first_stage="bm25")
    assert (measure(VanillaRagContext()), measure(by_words)) == ("similarity", "score")
    assert measure(VanillaRagContext(first_stage="bm25", selection="gmmr")) == "similarity"
    reranked = VanillaRagContext(rerank_n=9, reranker="likelihood")
    assert (measure(reranked), measure(reranked, reranked=False)) == ("score", "similarity")
    assert score_name("vanilla_rag", VanillaRagContext()) == "similarity to the question"
    assert score_name("vanilla_rag", by_words) == "score"
    assert score_name("sunar", by_words) == "the re-ranker's score"
