"""Opens the models and corpora that contexts name. Each is opened once and shared by all graphs of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from ..errors import UserFault
from ..models.background import start_in_background
from ..models.interfaces import ChatModel, Encoder, Judge
from ..models.metering import Metered, report_progress
from ..retrieval.vector_databases import names_database
from ..settings import settings
from ..state.where import Condition, condition_of
from .live_objects import as_chat_model, as_encoder, as_retriever
from .opening import cache_of, check_weights, corpus_path, open_chat_model, open_encoder

if TYPE_CHECKING:
    from pathlib import Path

    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models import BaseChatModel
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore

    from ..models.rerankers import Reranker
    from ..prompts.reasoning_examples import Example
    from ..retrieval.corpus_graph import CorpusGraph
    from ..retrieval.document_graph import DocumentGraph
    from ..retrieval.first_stage import FirstStage
    from ..retrieval.index import Index
    from ..retrieval.pool import Retriever
    from ..state.context import BaseContext
    from ..state.dense import DenseContext
    from ..state.mixins import (
        CorpusContext,
        DocumentGraphContext,
        EncoderContext,
        ExamplesContext,
        FirstStageContext,
        JudgeContext,
        RerankerContext,
    )

T = TypeVar("T")

MOST_FILTERS = 32
"""Filters whose restricted indexes are kept: a server may be asked with any number of them."""


class _IndexKey(NamedTuple):
    """The settings that an index is made from."""

    corpus: str
    chunker: str
    encoder: str
    on_bad_record: Literal["refuse", "skip"]


class Resources:
    """Open models and corpora.

    A live object replaces the name in a context. It can be a chat model, encoder or retriever of dubito or of
    LangChain (chat model, embeddings, retriever, vector store), an entailment judge, a re-ranker, a document graph, or
    a second chat model for DENSE's rephrasings.
    is_deterministic: by name, for the chat models that got one prompt twice: were the two answers equal?
    """

    def __init__(
        self,
        llm: ChatModel | BaseChatModel | None = None,
        encoder: Encoder | Embeddings | None = None,
        retriever: Retriever | BaseRetriever | VectorStore | None = None,
        *,
        judge: Judge | None = None,
        reranker: Reranker | None = None,
        rephraser: ChatModel | BaseChatModel | None = None,
        graph: CorpusGraph | None = None,
        around: Callable[[ChatModel], ChatModel] | None = None,
    ) -> None:
        """All arguments are optional; what is missing is opened by name. around: wraps each chat model."""
        self._llm = None if llm is None else as_chat_model(llm)
        self._rephraser = None if rephraser is None else as_chat_model(rephraser)
        self._around = around or (lambda model: model)
        self._encoder = None if encoder is None else as_encoder(encoder)
        self._retriever = retriever
        self._judge = judge
        self._reranker = reranker
        self._graph = graph
        self.is_deterministic: dict[str, bool] = {}
        self._opened: dict[tuple[object, ...], Future[Any]] = {}
        self._filters: dict[str, None] = {}
        self._metered: dict[tuple[str, str, int], Metered] = {}
        self._lock = threading.Lock()

    @property
    def has_encoder(self) -> bool:
        """Is there a live encoder?"""
        return self._encoder is not None

    async def llm(self, context: BaseContext) -> Metered:
        """The context's chat model, with at most `concurrency` calls at a time; `UserFault` for an unknown name."""
        return await self._chat_model("llm", context.llm, self._llm, context.concurrency)

    async def rephraser(self, context: DenseContext) -> Metered:
        """The chat model that rephrases DENSE's chunks: the context's chat model unless another is named or live."""
        if self._rephraser is None and context.rephraser == "llm":
            return await self.llm(context)
        # a live chat model replaces the setting llm alone
        kind = "llm" if self._llm is None and self._rephraser is None else "rephraser"
        return await self._chat_model(kind, context.rephraser, self._rephraser, context.concurrency)

    async def _chat_model(self, kind: str, name: str, live: ChatModel | None, concurrency: int) -> Metered:
        async def open_it() -> ChatModel:
            return self._around(await asyncio.to_thread(open_chat_model, name) if live is None else live)

        model = await self._once((kind, name), open_it)
        with self._lock:
            return self._metered.setdefault((kind, name, concurrency), Metered(model, concurrency))

    async def encoder(self, context: EncoderContext) -> Encoder:
        """The context's encoder, with its on-disk cache; `UserFault` for an unknown name."""
        return await self.encoder_named(context.encoder)

    async def encoder_named(self, name: str) -> Encoder:
        """The encoder of that name, with its on-disk cache; `UserFault` for an unknown name."""

        async def open_it() -> Encoder:
            if self._encoder is not None:
                return self._encoder
            return await asyncio.to_thread(open_encoder, name)

        return await self._once(("encoder", name), open_it)

    async def judge(self, context: JudgeContext) -> Judge:
        """The context's entailment judge, which may use its chat model or encoder; `UserFault` for an unknown name."""
        name = context.judge

        async def open_it() -> Judge:
            from ..models.judges import open_judge  # noqa: PLC0415 - for the graphs that judge

            await check_weights(name, "nli:", "judge")
            encoder = await self.encoder(context) if name.startswith(("embedded", "similarity")) else None
            return open_judge(name, await self.llm(context), encoder, settings().cache)

        if self._judge is not None:
            return self._judge
        # a judge with weights of its own uses neither the chat model nor the encoder
        uses = () if name.startswith("nli:") else (context.llm, context.encoder, context.concurrency)
        return await self._once(("judge", name, *uses), open_it)

    async def examples(self, context: ExamplesContext) -> tuple[Example, ...]:
        """The context's in-context examples; `UserFault` for a file that cannot be read."""

        async def open_it() -> tuple[Example, ...]:
            from ..prompts.reasoning_examples import read_examples  # noqa: PLC0415 - for the graphs that reason

            return await asyncio.to_thread(read_examples, context.examples)

        return await self._once(("examples", context.examples), open_it)

    async def reranker(self, context: RerankerContext) -> Reranker:
        """The context's re-ranker, which may use its chat model or encoder; `UserFault` for an unknown name."""
        name = context.reranker

        async def open_it() -> Reranker:
            from ..models.rerankers import open_reranker  # noqa: PLC0415 - for the graphs that re-rank

            await check_weights(name, "cross:", "re-ranker")
            encoder = await self.encoder(context) if name == "embedded" else None
            return open_reranker(name, await self.llm(context), encoder)

        if self._reranker is not None:
            return self._reranker
        # a re-ranker with weights of its own uses neither the chat model nor the encoder
        uses = () if name.startswith("cross:") else (context.llm, context.encoder, context.concurrency)
        return await self._once(("reranker", name, *uses), open_it)

    async def candidates(self, context: FirstStageContext) -> Retriever:
        """The context's first stage as a retriever, whose pools have vectors. A live retriever replaces it."""
        from ..retrieval.first_stage import IndexStage, VectorsOfStage  # noqa: PLC0415
        from ..retrieval.index import Index  # noqa: PLC0415 - faiss loads when first needed

        index = await self.retriever(context)
        if context.first_stage == "dense" or not isinstance(index, Index):
            return index
        stage = await self.first_stage(context)
        assert isinstance(stage, IndexStage)  # noqa: S101 - it is one over an index
        return VectorsOfStage(stage, index)

    async def first_stage(self, context: FirstStageContext, *, chunker: str | None = None) -> FirstStage:
        """The context's first stage over its corpus, cut by its chunker or another. A live retriever replaces it."""
        key = _index_key(context, chunker)
        name, corpus = context.first_stage, context.corpus

        async def open_it() -> FirstStage:
            from ..retrieval.first_stage import open_first_stage  # noqa: PLC0415

            source: Retriever | None = None
            alone = name.strip() == "bm25" and not context.uses_vectors
            if alone and self._retriever is None and not names_database(corpus):
                source = await self._chunked(context, key)
                if source is not None and context.where:
                    source = await asyncio.to_thread(source.restricted, condition_of(context.where))
            source = source or await self.retriever(context, chunker=chunker)
            cache = await asyncio.to_thread(cache_of, corpus)
            return await open_first_stage(name, source, cache, _progress(f"reading {corpus}"))

        return await self._once(("first stage", name, key), open_it, context.where)

    async def _chunked(self, context: CorpusContext, key: _IndexKey) -> Index | None:
        """The context's corpus without vectors; None for a chunker that needs an encoder."""
        from ..retrieval.index import cut_corpus  # noqa: PLC0415 - faiss loads when first needed

        corpus, chunker, _, on_bad_record = key
        return await self._once(
            ("chunks", key), lambda: cut_corpus(corpus_path(corpus), chunker, on_bad_record=on_bad_record)
        )

    async def chunks_sha256(self, context: CorpusContext) -> str | None:
        """The hash of the context's chunks, by which a corpus is known again; None for a live or remote retriever."""
        key = _index_key(context)

        async def hash_it() -> str | None:
            from ..retrieval.index import Index, cut_corpus  # noqa: PLC0415 - faiss loads when first needed

            # not kept open: most graphs have the same chunks in memory with their vectors
            cut = await cut_corpus(corpus_path(context.corpus), context.chunker, on_bad_record=context.on_bad_record)
            index = await self._unfiltered(key) if cut is None else cut
            return index.manifest.chunks_sha256 if isinstance(index, Index) else None

        if self._retriever is not None or names_database(context.corpus):
            return None
        return await self._once(("hash of chunks", key), hash_it)

    async def known_by(self, context: CorpusContext) -> str | None:
        """By what the context's corpus is known again; None if it cannot be, because the retriever is a live object.

        It is the hash of the chunks. A collection of a vector database, which is not read as a whole, has its name.
        """
        if self._retriever is None and names_database(context.corpus):
            return context.corpus
        return await self.chunks_sha256(context)

    async def document_graph(self, context: DocumentGraphContext) -> CorpusGraph:
        """Each document's nearest neighbours under the graph's encoder.

        The graph is built at first use and kept in the cache folder. It is empty for a live retriever and for 0
        neighbours.
        """
        corpus, graph_encoder, neighbours = context.corpus, context.graph_encoder, context.graph_neighbours

        async def open_it() -> CorpusGraph:
            from ..retrieval.corpus_graph import EmptyCorpusGraph  # noqa: PLC0415
            from ..retrieval.index import Index  # noqa: PLC0415 - faiss loads when first needed

            source = await self._unfiltered(_index_key(context))
            if not isinstance(source, Index) or not neighbours:
                return EmptyCorpusGraph()
            return await self.graph_of(
                source,
                graph_encoder,
                neighbours,
                cache=await asyncio.to_thread(cache_of, corpus),
                progress=_progress(f"comparing the documents of {corpus}"),
                embedding=_progress(f"embedding {corpus} for its graph"),
            )

        if self._graph is not None:
            return self._graph
        graph = await self._once(("graph", _index_key(context), graph_encoder, neighbours), open_it)
        if not context.where:
            return graph
        from ..retrieval.restricted import RestrictedGraph  # noqa: PLC0415

        return RestrictedGraph(graph, condition_of(context.where))

    async def check_graph(self, encoder: str) -> None:
        """Raise `UserFault` for an encoder of a document graph that is unknown or whose folder does not exist."""
        from ..models.late_interaction import COLBERT  # noqa: PLC0415 - backends load when first needed

        if encoder.startswith(COLBERT):
            await check_weights(encoder, COLBERT, "late-interaction model")
        else:
            await check_weights(encoder, "st:", "encoder")
            await self.encoder_named(encoder)

    async def graph_of(
        self,
        index: Index,
        encoder: str,
        neighbours: int,
        *,
        progress: Callable[[int, int], None],
        embedding: Callable[[int, int], None],
        cache: Path | None = None,
        before: Index | None = None,
    ) -> DocumentGraph:
        """The document graph of an index under an encoder or by late interaction, kept in the cache folder or `cache`.

        embedding, progress: are called with the number of embedded chunks, then of chunks with neighbours; before: an
        index that is the beginning of this one, whose graph is extended if the cache folder has it.
        """
        from ..models.late_interaction import COLBERT, LateInteractionModel  # noqa: PLC0415
        from ..retrieval.document_graph import cached_graph  # noqa: PLC0415 - faiss loads when first needed
        from ..retrieval.late_interaction import cached_late_graph  # noqa: PLC0415

        cache = cache or settings().cache
        await self.check_graph(encoder)
        if encoder.startswith(COLBERT):
            model = await asyncio.to_thread(LateInteractionModel, encoder, encoder.removeprefix(COLBERT))
            return await cached_late_graph(index, neighbours, cache, model, progress, encoding=embedding, before=before)
        return await cached_graph(
            index,
            neighbours,
            cache,
            progress,
            encoder=await self.encoder_named(encoder),
            embedding=embedding,
            before=before,
        )

    async def retriever(self, context: CorpusContext, *, chunker: str | None = None) -> Retriever:
        """The index of the context's corpus under its encoder and its chunker, or another chunker.

        With `where` only the chunks that pass are found in it.
        The index is built at first use and kept in the cache folder. `UserFault` for a filter that no chunk passes, and
        for a filter over a live retriever.
        """
        key = _index_key(context, chunker)

        async def restrict() -> Retriever:
            whole = await self._unfiltered(key)
            restricted: Callable[[Condition], Retriever] | None = getattr(whole, "restricted", None)
            if restricted is None:
                raise UserFault(
                    "`where` filters index folders, corpus files and vector databases: give your own retriever a "
                    "filter of its own, and leave `where` out."
                )
            return await asyncio.to_thread(restricted, condition_of(context.where))

        if not context.where:
            return await self._unfiltered(key)
        return await self._once(("retriever", key), restrict, context.where)

    async def _unfiltered(self, key: _IndexKey) -> Retriever:
        """The whole index."""
        corpus, chunker, encoder, on_bad_record = key

        async def open_it() -> Retriever:
            if self._retriever is not None:
                return await as_retriever(self._retriever, chunker, lambda: self.encoder_named(encoder))
            opened = await self.encoder_named(encoder)
            if names_database(corpus):
                from ..retrieval.vector_store import open_collection  # noqa: PLC0415 - an extra

                collection = await open_collection(corpus, opened)
                return await as_retriever(collection, chunker, lambda: self.encoder_named(encoder))
            from ..retrieval.index import cached_index  # noqa: PLC0415 - faiss loads when first needed

            return await cached_index(
                corpus_path(corpus),
                chunker,
                opened,
                await asyncio.to_thread(cache_of, corpus),
                on_bad_record=on_bad_record,
                progress=_progress(f"indexing {corpus}"),
                comparing=_progress(f"comparing sentences of {corpus}"),
            )

        return await self._once(("retriever", key), open_it)

    async def _once(self, key: tuple[object, ...], open_it: Callable[[], Awaitable[T]], where: str = "") -> T:
        """What was opened under the key; where: the filter that it was opened with, of which only the last are kept."""
        key = (*key, where)

        async def opening() -> T:
            try:
                return await open_it()
            except BaseException:
                with self._lock:
                    if self._opened.get(key) is future:  # else it was forgotten, and is opened again
                        del self._opened[key]
                raise

        with self._lock:
            if where:
                self._filters[where] = self._filters.pop(where, None)
                if len(self._filters) > MOST_FILTERS:
                    oldest = next(iter(self._filters))
                    del self._filters[oldest]
                    self._opened = {known: opened for known, opened in self._opened.items() if known[-1] != oldest}
            future = self._opened.get(key)
            if future is None:
                # on the background loop, because other callers wait for it and the first caller's loop may close
                future = self._opened[key] = start_in_background(opening())
        # shielded: a caller that gives up must not cancel it for the others
        opened: T = await asyncio.shield(asyncio.wrap_future(future))
        return opened

    def forget(self, corpus: str) -> None:
        """Let go of what is open of a corpus, whatever its other settings. A run that still uses it opens it again."""
        with self._lock:
            self._opened = {known: opened for known, opened in self._opened.items() if not _is_of(known, corpus)}


def _index_key(context: CorpusContext, chunker: str | None = None) -> _IndexKey:
    chosen = context.chunker if chunker is None else chunker
    return _IndexKey(context.corpus, chosen, context.encoder, context.on_bad_record)


def _is_of(key: tuple[object, ...], corpus: str) -> bool:
    return any(isinstance(part, _IndexKey) and part.corpus == corpus for part in key)


def _progress(task: str) -> Callable[[int, int], None]:
    return lambda done, total: report_progress(task, done, total)


_shared: Resources | None = None
_shared_lock = threading.Lock()


def shared_resources() -> Resources:
    """The resources of all graphs that were built without resources of their own."""
    global _shared  # noqa: PLW0603 - there is one per process
    with _shared_lock:
        _shared = _shared or Resources()
        return _shared
