"""Names resolved to open models and corpora, each once, shared by every graph of the process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from importlib import resources as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from ..errors import UserFault
from ..settings import settings
from .background import start_in_background
from .interfaces import ChatModel, Encoder, Judge
from .metering import Metered, report_progress

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
    from langchain_core.language_models import BaseChatModel
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore

    from ..retrieval.document_graph import DocumentGraph
    from ..retrieval.first_stage import FirstStage
    from ..retrieval.index import Index
    from ..retrieval.pool import Retriever
    from ..retrieval.surroundings import Surroundings
    from .rerankers import Reranker

T = TypeVar("T")

SAMPLE = "sample"
QDRANT = "qdrant:"
CHAT_NAMES = (
    "embedded, vllm:URL#model, vllm:URL#model&states=URL, engine:folder-or-hub-name, openai:URL#model, "
    "hf:folder-or-hub-name, gguf:file"
)
ENCODER_NAMES = "embedded, st:folder-or-hub-name, openai:URL#model"


class Resources:
    """Open models and corpora.

    Give live objects to use them in place of what a context names: any chat model, encoder or retriever of ours, or of
    LangChain's (chat model, embeddings, retriever, vector store); any entailment judge, re-ranker or document graph.
    repeats_itself: of the chat models that were asked one prompt twice, whether they answered alike.
    """

    def __init__(
        self,
        llm: ChatModel | BaseChatModel | None = None,
        encoder: Encoder | Embeddings | None = None,
        retriever: Retriever | BaseRetriever | VectorStore | None = None,
        *,
        judge: Judge | None = None,
        reranker: Reranker | None = None,
        graph: Surroundings | None = None,
        around: Callable[[ChatModel], ChatModel] | None = None,
    ) -> None:
        """Every argument is optional; what is left out is opened by name. around: put around each chat model."""
        self._llm = None if llm is None else _as_chat_model(llm)
        self._around = around or (lambda model: model)
        self._encoder = None if encoder is None else _as_encoder(encoder)
        self._retriever = retriever
        self._judge = judge
        self._reranker = reranker
        self._graph = graph
        self.repeats_itself: dict[str, bool] = {}
        self._opened: dict[tuple[object, ...], Future[Any]] = {}
        self._metered: dict[tuple[str, int], Metered] = {}
        self._lock = threading.Lock()

    async def llm(self, name: str, concurrency: int) -> Metered:
        """The chat model of that name, bounded to `concurrency` calls at a time; `UserFault` for an unknown name."""

        async def open_it() -> ChatModel:
            given = self._llm
            return self._around(await asyncio.to_thread(open_chat_model, name) if given is None else given)

        model = await self._once(("llm", name), open_it)
        with self._lock:
            return self._metered.setdefault((name, concurrency), Metered(model, concurrency))

    async def encoder(self, name: str) -> Encoder:
        """The encoder of that name, with its on-disk cache; `UserFault` for an unknown name."""

        async def open_it() -> Encoder:
            if self._encoder is not None:
                return self._encoder
            return await asyncio.to_thread(open_encoder, name)

        return await self._once(("encoder", name), open_it)

    async def judge(self, name: str, llm: str, encoder: str, concurrency: int) -> Judge:
        """The entailment judge of that name, over this chat model or encoder; `UserFault` for an unknown name."""

        async def open_it() -> Judge:
            from .judges import open_judge  # noqa: PLC0415 - for the graphs that judge

            opened = await self.llm(llm, concurrency), await self.encoder(encoder)
            await _check_weights(name, "nli:", "judge")
            return open_judge(name, *opened, settings().cache)

        if self._judge is not None:
            return self._judge
        uses = () if name.startswith("nli:") else (llm, encoder, concurrency)  # weights of its own are opened once
        return await self._once(("judge", name, *uses), open_it)

    async def reranker(self, name: str, llm: str, encoder: str, concurrency: int) -> Reranker:
        """The re-ranker of that name, over this chat model or encoder; `UserFault` for an unknown name."""

        async def open_it() -> Reranker:
            from .rerankers import open_reranker  # noqa: PLC0415 - for the graphs that re-rank

            opened = await self.llm(llm, concurrency), await self.encoder(encoder)
            await _check_weights(name, "cross:", "re-ranker")
            return open_reranker(name, *opened)

        if self._reranker is not None:
            return self._reranker
        uses = () if name.startswith("cross:") else (llm, encoder, concurrency)  # weights of its own are opened once
        return await self._once(("reranker", name, *uses), open_it)

    async def first_stage(
        self, name: str, corpus: str, chunker: str, encoder: str, on_error: Literal["refuse", "skip"] = "refuse"
    ) -> FirstStage:
        """The first stage of that name over a corpus; a retriever that the caller gave stands for any."""

        async def open_it() -> FirstStage:
            from ..retrieval.first_stage import open_first_stage  # noqa: PLC0415 - faiss loads when first needed

            source = await self.retriever(corpus, chunker, encoder, on_error)
            return await open_first_stage(name, source, settings().cache, _progress(f"reading {corpus}"))

        return await self._once(("first stage", name, corpus, chunker, encoder, on_error), open_it)

    async def document_graph(
        self,
        corpus: str,
        chunker: str,
        encoder: str,
        *,
        graph_encoder: str,
        neighbours: int,
        on_error: Literal["refuse", "skip"] = "refuse",
    ) -> Surroundings:
        """Each document's nearest others under the graph's encoder, built at first use and kept in the cache folder.

        Around the documents of a retriever that the caller gave, and of 0 neighbours, there are none.
        """

        async def open_it() -> Surroundings:
            from ..retrieval.index import Index  # noqa: PLC0415 - faiss loads when first needed
            from ..retrieval.surroundings import NoSurroundings  # noqa: PLC0415

            source = await self.retriever(corpus, chunker, encoder, on_error)
            if not isinstance(source, Index) or not neighbours:
                return NoSurroundings()
            return await self.graph_of(
                source,
                graph_encoder,
                neighbours,
                progress=_progress(f"comparing the documents of {corpus}"),
                embedding=_progress(f"embedding {corpus} for its graph"),
            )

        if self._graph is not None:
            return self._graph
        key = ("graph", corpus, chunker, encoder, graph_encoder, neighbours, on_error)
        return await self._once(key, open_it)

    async def check_graph(self, encoder: str) -> None:
        """`UserFault` for a document graph's encoder that is unknown, or whose folder is not there."""
        from .late_interaction import COLBERT  # noqa: PLC0415 - backends load when first needed

        if encoder.startswith(COLBERT):
            await _check_weights(encoder, COLBERT, "late-interaction model")
        else:
            await _check_weights(encoder, "st:", "encoder")
            await self.encoder(encoder)

    async def graph_of(
        self,
        index: Index,
        encoder: str,
        neighbours: int,
        *,
        progress: Callable[[int, int], None],
        embedding: Callable[[int, int], None],
        before: Index | None = None,
    ) -> DocumentGraph:
        """An index's document graph under an encoder, or by late interaction, kept in the cache folder.

        progress: hears how many chunks' neighbours are known; embedding: before that, how many chunks are embedded;
        before: an index that this one begins with and whose graph, if it is kept, is extended.
        """
        from ..retrieval.document_graph import cached_graph  # noqa: PLC0415 - faiss loads when first needed
        from ..retrieval.late_interaction import cached_late_graph  # noqa: PLC0415
        from .late_interaction import COLBERT, LateInteractionModel  # noqa: PLC0415

        cache = settings().cache
        await self.check_graph(encoder)
        if encoder.startswith(COLBERT):
            model = LateInteractionModel(encoder, encoder.removeprefix(COLBERT))
            return await cached_late_graph(index, neighbours, cache, model, progress, encoding=embedding, before=before)
        return await cached_graph(
            index,
            neighbours,
            cache,
            progress,
            encoder=await self.encoder(encoder),
            embedding=embedding,
            before=before,
        )

    async def retriever(
        self, corpus: str, chunker: str, encoder: str, on_error: Literal["refuse", "skip"] = "refuse"
    ) -> Retriever:
        """The index of a corpus under a chunker and an encoder, built at first use and kept in the cache folder."""

        async def open_it() -> Retriever:
            if self._retriever is not None:
                return await self._live(self._retriever, chunker, encoder)
            opened = await self.encoder(encoder)
            if corpus.startswith(QDRANT):
                from ..retrieval.qdrant import open_collection  # noqa: PLC0415 - an extra

                return await self._live(await open_collection(corpus, opened), chunker, encoder)
            from ..retrieval.index import cached_index  # noqa: PLC0415 - faiss loads when first needed

            return await cached_index(
                corpus_path(corpus),
                chunker,
                opened,
                settings().cache,
                on_error=on_error,
                progress=_progress(f"indexing {corpus}"),
                comparing=_progress(f"comparing sentences of {corpus}"),
            )

        return await self._once(("retriever", corpus, chunker, encoder, on_error), open_it)

    async def _live(self, given: Retriever | BaseRetriever | VectorStore, chunker: str, encoder: str) -> Retriever:
        """The caller's retriever; its documents are its chunks, unless they are to be cut anew by meaning."""
        semantic = chunker.strip().startswith("semantic:")
        if not _is_langchain(given) and not semantic:
            return cast("Retriever", given)
        from ..retrieval.index import chunker_for  # noqa: PLC0415 - faiss loads when first needed
        from ..retrieval.langchain_retriever import LangChainRetriever  # noqa: PLC0415
        from ..retrieval.rechunk import Rechunked  # noqa: PLC0415

        opened = await self.encoder(encoder)
        if _is_langchain(given):
            live: Retriever = LangChainRetriever(cast("BaseRetriever | VectorStore", given), opened)
        else:
            live = cast("Retriever", given)
        return Rechunked(live, await chunker_for(chunker, opened), opened) if semantic else live

    async def _once(self, key: tuple[object, ...], open_it: Callable[[], Awaitable[T]]) -> T:
        async def opening() -> T:
            try:
                return await open_it()
            except BaseException:
                with self._lock:
                    del self._opened[key]
                raise

        with self._lock:
            future = self._opened.get(key)
            if future is None:
                # on the background loop: what one caller opens, others wait for, whose loops may be blocked or closed
                future = self._opened[key] = start_in_background(opening())
        # shielded: a caller that gives up must not cancel what others wait for
        opened: T = await asyncio.shield(asyncio.wrap_future(future))
        return opened


async def _check_weights(name: str, kind: str, what: str) -> None:
    """Refuse a folder that is not there now, before any model is called; the weights themselves load when needed."""
    from .encoders import check_folder  # noqa: PLC0415 - backends load when first needed

    if name.startswith(kind):
        await asyncio.to_thread(check_folder, name.removeprefix(kind), what)


def _progress(what: str) -> Callable[[int, int], None]:
    return lambda done, total: report_progress(what, done, total)


def corpus_path(name: str) -> Path:
    """The path a corpus name stands for: the bundled sample, or the name itself."""
    if name == SAMPLE:
        return Path(str(package_files.files("dubito") / "examples" / "sample" / "corpus.jsonl"))
    return Path(name).expanduser()


def check_corpus(name: str) -> None:
    """`UserFault` for a corpus that is not there, before anything is loaded for it; one of Qdrant's may be anywhere."""
    if not name.startswith(QDRANT) and not os.path.exists(corpus_path(name)):  # noqa: PTH110 - which raises for odd names
        raise UserFault(f"There is no corpus at '{name}': give an index folder, or a corpus file or folder.")


def open_chat_model(name: str) -> ChatModel:
    """Open a chat model by name; weights are loaded at its first call. `UserFault` for an unknown name."""
    kind, _, rest = name.partition(":")
    if kind in {"vllm", "openai"} and rest:
        from .openai_chat import open_server  # noqa: PLC0415 - backends load when first needed

        return open_server(name, rest, "vllm" if kind == "vllm" else "openai")
    if kind == "engine" and rest:
        from .vllm_engine import open_engine  # noqa: PLC0415

        return open_engine(name)
    if name == "embedded" or (kind in {"hf", "gguf"} and rest):
        from .transformers_chat import TransformersChat  # noqa: PLC0415
        from .weights import smollm2_gguf  # noqa: PLC0415

        return TransformersChat(name, str(smollm2_gguf()) if name == "embedded" else rest)
    raise UserFault(f"There is no chat model named '{name}': use one of {CHAT_NAMES}.")


def open_encoder(name: str) -> Encoder:
    """Open an encoder by name, cached on disk; weights are loaded at its first call."""
    from .embedding_cache import CachedEncoder  # noqa: PLC0415 - backends load when first needed
    from .encoders import SentenceTransformersEncoder, openai_encoder  # noqa: PLC0415
    from .weights import minilm_folder  # noqa: PLC0415

    kind, _, rest = name.partition(":")
    encoder: Encoder
    if name == "embedded":
        encoder = SentenceTransformersEncoder(name, str(minilm_folder()))
    elif kind == "st" and rest:
        encoder = SentenceTransformersEncoder(name, rest)
    elif kind == "openai" and "#" in rest:
        url, _, model = rest.partition("#")
        encoder = openai_encoder(name, url, model)
    else:
        raise UserFault(f"There is no encoder named '{name}': use one of {ENCODER_NAMES}.")
    return CachedEncoder(encoder, settings().cache / "embeddings.sqlite")


def _as_chat_model(llm: ChatModel | BaseChatModel) -> ChatModel:
    from langchain_core.language_models import BaseChatModel  # noqa: PLC0415

    if not isinstance(llm, BaseChatModel):
        return llm
    from .langchain_chat import LangChainChat  # noqa: PLC0415

    return LangChainChat(llm)


def _as_encoder(encoder: Encoder | Embeddings) -> Encoder:
    from langchain_core.embeddings import Embeddings  # noqa: PLC0415

    if not isinstance(encoder, Embeddings):
        return encoder
    from .encoders import LangChainEncoder  # noqa: PLC0415

    return LangChainEncoder(encoder)


def _is_langchain(retriever: Retriever | BaseRetriever | VectorStore) -> bool:
    from langchain_core.retrievers import BaseRetriever  # noqa: PLC0415
    from langchain_core.vectorstores import VectorStore  # noqa: PLC0415

    return isinstance(retriever, BaseRetriever | VectorStore)


_shared: Resources | None = None
_shared_lock = threading.Lock()


def shared_resources() -> Resources:
    """The registry that every graph uses which was built without resources of its own."""
    global _shared  # noqa: PLW0603 - one registry a process is the point
    with _shared_lock:
        _shared = _shared or Resources()
        return _shared
