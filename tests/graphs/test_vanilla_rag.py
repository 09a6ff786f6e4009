"""Vanilla RAG's machine: every way to select, at every edge, with scripted models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.graphs import df_rag, vanilla_rag
from dubito.models.interfaces import Capability, Completion
from dubito.prompts import answer, cited_answer
from dubito.resources.resources import Resources
from dubito.retrieval.pool import Pool
from dubito.state.capability import Means
from dubito.state.df_rag import LAMBDAS
from dubito.state.seper import SePerContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import (
    QUERY,
    QUESTION,
    VECTORS,
    ScriptedChat,
    ScriptedJudge,
    ScriptedRetriever,
    chat,
    resources,
)
from langgraph.checkpoint.memory import InMemorySaver

INPUT: Any = {"question": QUESTION}


async def run(opened: Resources, **settings: Any) -> tuple[dict[str, Any], list[str]]:
    """The final state and the names of the nodes in the order in which they ended."""
    graph: Any = vanilla_rag.build(opened).compile()
    path: list[str] = []
    state: dict[str, Any] = {}
    async for mode, part in graph.astream(INPUT, context=settings, stream_mode=["updates", "values"]):
        if mode == "updates":
            path += list(part)
        else:
            state = part
    return state, path


def ids(state: dict[str, Any]) -> list[str]:
    return [chunk["id"] for chunk in state["evidence"]]


def room_for(words: int, ask: Any = answer.messages) -> int:
    """The window that leaves just this many words for passages, by the scripted model's count of words."""
    asked = sum(len(text.split()) for text in answer.around_passages(QUESTION, ask))
    return asked + 64 + 64 + words  # the longest answer, and what is kept free


@pytest.mark.parametrize("selection", ["top_k", "gmmr", "mmr", "long_context"])
async def test_the_path_and_the_calls_are_the_same_for_every_selection(selection: str) -> None:
    llm = chat(context_window=4096)
    state, path = await run(resources(llm), selection=selection)
    assert path == ["prepare", "retrieve", "generate"]
    assert [verb for verb, _ in llm.calls] == ["complete"]
    assert state["answer"] == "the Lune"
    assert state["uncertainty"] is None
    assert state["warnings"] == []
    usage = state["usage"]
    assert (usage["calls"], usage["prompt_tokens"], usage["completion_tokens"]) == (1, 7, 3)
    assert {node: (cost["runs"], cost["calls"]) for node, cost in usage["nodes"].items()} == {
        "retrieve": (1, 0),
        "generate": (1, 1),
    }
    prompt = llm.calls[0][1][-1]["content"]
    assert [f"T{i}\n" in prompt for i in range(7)] == [f"c{i}" in ids(state) for i in range(7)]


async def test_top_k_asks_the_retriever_for_k_chunks_and_takes_the_most_similar() -> None:
    asked: list[int | None] = []

    class Watched(ScriptedRetriever):
        async def pool(self, query: str, top_n: int | None) -> Pool:
            asked.append(top_n)
            return await super().pool(query, top_n)

    shuffled = [VECTORS[i] for i in (5, 3, 0, 6, 1, 2, 4)]
    state, _ = await run(Resources(llm=chat(), retriever=Watched(QUERY, shuffled)), k=3)
    assert ids(state) == ["c2", "c4", "c5"]
    assert asked == [3]
    scores = [chunk["score"] for chunk in state["evidence"]]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(1 / (1 + 0.1**2) ** 0.5, abs=1e-6)


class Reversing:
    """A re-ranker that likes the last chunk best; two chunks are equal to it."""

    name = "reversing"

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []

    async def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        self.asked.append((query, list(texts)))
        return [min(place, 3) / 10 for place in range(len(texts))]


async def test_a_reranker_chooses_k_of_the_chunks_that_were_found() -> None:
    reranker = Reversing()
    opened = Resources(llm=chat(), retriever=ScriptedRetriever(QUERY, VECTORS), reranker=reranker)
    state, path = await run(opened, k=2, rerank_n=5, reranker="cross:own")
    assert path == ["prepare", "retrieve", "generate"]
    assert [(question, len(texts)) for question, texts in reranker.asked] == [(QUESTION, 5)]
    assert ids(state) == ["c3", "c4"], "equal scores stay in the order of the search"
    assert [chunk["score"] for chunk in state["evidence"]] == [0.3, 0.3]
    assert [chunk["id"] for chunk in state["first_stage"]] == ["c0", "c1", "c2", "c3", "c4"]
    assert [chunk["score"] for chunk in state["first_stage"]] == sorted(
        (chunk["score"] for chunk in state["first_stage"]), reverse=True
    )


async def test_all_chunks_are_reranked_if_there_are_fewer() -> None:
    opened = Resources(llm=chat(), retriever=ScriptedRetriever(QUERY, VECTORS[:3]), reranker=Reversing())
    state, _ = await run(opened, k=2, rerank_n=20, reranker="cross:own")
    assert ids(state) == ["c2", "c1"]
    assert state["warnings"] == []


async def test_without_reranking_no_reranker_is_asked() -> None:
    reranker = Reversing()
    state, _ = await run(Resources(llm=chat(), retriever=ScriptedRetriever(QUERY, VECTORS), reranker=reranker), k=2)
    assert (ids(state), reranker.asked) == (["c0", "c1"], [])
    assert not state["first_stage"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rerank_n": 3}, "rerank_n is 3 and k is 5: re-rank at least k chunks"),
        ({"rerank_n": 20, "reranker": "embedded"}, "by the similarity that found them: set reranker to cross:"),
        ({"rerank_n": 20, "selection": "gmmr"}, "rerank_n has no effect with selection=gmmr"),
        ({"reranker": "cross:own"}, "reranker has no effect with rerank_n=0"),
    ],
)
async def test_settings_of_the_reranking_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserFault, match=message):
        await run(resources(chat()), **settings)


def test_the_reranker_is_the_papers_or_the_models_likelihoods() -> None:
    means: frozenset[Means] = frozenset({"score", "logprobs", "encoder"})
    assert VanillaRagContext(rerank_n=20).fitted(means).reranker == "likelihood"
    assert SePerContext(rerank_n=20, preset="paper").fitted(means).reranker == "cross:BAAI/bge-reranker-large"
    assert VanillaRagContext().fitted(means).reranker == "auto", "no re-ranking, no re-ranker"


@pytest.mark.parametrize("diversity", ["gmmr", "mmr"])
async def test_a_fixed_lambda_selects_what_df_rag_selects_for_it(diversity: str) -> None:
    graph: Any = df_rag.build(resources(chat())).compile()
    settings = {"evaluator": "report", "diversity": diversity}
    swept = await graph.ainvoke(INPUT, context=settings, output_keys=["candidates"])
    sets = {lam: one["chunk_ids"] for one in swept["candidates"] for lam in one["lambdas"]}
    assert len({tuple(one) for one in sets.values()}) > 1, "λ must matter here"
    for lam in LAMBDAS:
        state, _ = await run(resources(chat()), selection=diversity, fixed_lambda=lam)
        assert ids(state) == sets[lam]


async def test_lambda_one_is_plain_similarity_and_lambda_zero_is_not() -> None:
    plain, _ = await run(resources(chat()))
    for diversity in ("gmmr", "mmr"):
        similar, _ = await run(resources(chat()), selection=diversity, fixed_lambda=1.0)
        diverse, _ = await run(resources(chat()), selection=diversity, fixed_lambda=0.0)
        assert ids(similar) == ids(plain) == ["c0", "c1", "c2", "c3", "c4"]
        assert {"c0", "c5", "c6"} <= set(ids(diverse))


async def test_long_context_takes_every_chunk_that_fits_in_the_order_of_the_corpus() -> None:
    shuffled = [VECTORS[i] for i in (5, 3, 0, 6, 1, 2, 4)]
    everything, _ = await run(resources(chat(context_window=4096), shuffled), selection="long_context")
    assert ids(everything) == [f"c{i}" for i in range(7)], "k does not bound it"
    each = 4 + 2  # the marks and the title, and two words of text
    for words, expected in [
        (3 * each, ["c2", "c4", "c5"]),
        (4 * each - 1, ["c2", "c4", "c5"]),
        (4 * each, ["c1", "c2", "c4", "c5"]),
    ]:
        state, _ = await run(resources(chat(context_window=room_for(words)), shuffled), selection="long_context")
        assert ids(state) == expected, "the most similar ones, in the order of the corpus"


async def test_long_context_leaves_room_for_the_prompt_that_asks_for_citations() -> None:
    window = room_for(3 * 6, cited_answer.messages)
    opened = Resources(chat(context_window=window), retriever=ScriptedRetriever(QUERY, VECTORS), judge=ScriptedJudge())
    state, _ = await run(opened, selection="long_context", cite=True)
    assert ids(state) == ["c0", "c1", "c2"]


async def test_long_context_counts_a_large_corpus_in_batches() -> None:
    many = [[1.0, i / 1000, 0.0] for i in range(200)]
    state, _ = await run(resources(chat(context_window=room_for(150 * 6)), many), selection="long_context")
    assert ids(state) == [f"c{i}" for i in range(150)]


@pytest.mark.parametrize("words", [5, 0, -10_000])
async def test_with_a_window_too_small_for_any_chunk_it_answers_without_and_warns(words: int) -> None:
    state, _ = await run(resources(chat(context_window=room_for(words))), selection="long_context")
    assert state["evidence"] == []
    assert state["answer"] == "the Lune"
    assert state["warnings"] == ["Not one chunk fits the model's context window; the answer is made without evidence."]


async def test_long_context_refuses_a_model_whose_window_is_unknown() -> None:
    llm = chat(context_window=None)
    with pytest.raises(UserFault, match=r"'scripted' does not tell it: use .* or selection top_k"):
        await run(resources(llm), selection="long_context")
    assert llm.calls == []


@pytest.mark.parametrize("selection", ["top_k", "gmmr", "mmr", "long_context"])
async def test_without_chunks_it_answers_without_evidence_and_warns(selection: str) -> None:
    llm = chat(context_window=4096)
    state, path = await run(resources(llm, vectors=[]), selection=selection)
    assert path == ["prepare", "retrieve", "generate"]
    assert state["evidence"] == []
    assert state["answer"] == "the Lune"
    assert state["warnings"] == ["The retriever found no chunks; the answer is made without evidence."]
    assert "passage" not in llm.calls[0][1][-1]["content"].lower()


@pytest.mark.parametrize("selection", ["top_k", "gmmr", "mmr"])
async def test_k_larger_than_the_corpus_uses_every_chunk_and_warns(selection: str) -> None:
    state, _ = await run(resources(chat(), vectors=VECTORS[:3]), selection=selection, k=9)
    assert sorted(ids(state)) == ["c0", "c1", "c2"]
    assert state["warnings"] == ["Fewer chunks than k = 9 were found: 3. All of them are used."]


async def test_k_as_large_as_the_corpus_gives_no_warning() -> None:
    state, _ = await run(resources(chat(), vectors=VECTORS[:3]), k=3)
    assert (len(state["evidence"]), state["warnings"]) == (3, [])


async def test_a_reply_that_was_cut_before_its_answer_is_told_from_an_empty_one() -> None:
    llm = ScriptedChat(reply=lambda system, user: Completion("", "length", why_empty="it was cut off"))
    state, _ = await run(resources(llm))
    assert state["answer"] == ""
    assert state["warnings"] == ["The model's reply gave no answer: it was cut off."]
    assert "it was cut off" in llm.calls[1][1][-1]["content"]


async def test_after_two_empty_answers_it_warns() -> None:
    llm = ScriptedChat(reply=lambda system, user: " \n")
    state, _ = await run(resources(llm))
    assert state["answer"] == ""
    assert state["warnings"] == ["The model's reply gave no answer: it is empty."]
    assert state["usage"]["calls"] == len(llm.calls) == 2


class Mute(ScriptedChat):
    """A server's model that was asked for log-probabilities and gives none."""

    lacks: Mapping[Capability, str] = {"logprobs": "'scripted' gives no log-probabilities"}

    async def check(self, claimed: frozenset[Capability]) -> Mapping[Capability, str]:
        return {}


async def test_warnings_of_a_threads_last_question_are_gone_and_those_about_the_model_stay() -> None:
    opened = resources(Mute(reply=lambda system, user: "the Lune"))
    graph: Any = vanilla_rag.build(opened).compile(checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    about_the_model = "The chat model 'scripted' gives no log-probabilities."
    first = await graph.ainvoke(INPUT, thread, context={"k": 9})
    assert first["warnings"] == [about_the_model, "Fewer chunks than k = 9 were found: 7. All of them are used."]
    assert (await graph.ainvoke(INPUT, thread, context={"k": 7}))["warnings"] == [about_the_model]
