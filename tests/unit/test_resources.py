"""Names are resolved once, whatever else the callers' settings say."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from dubito.errors import UserFault
from dubito.models.background import start_in_background
from dubito.models.interfaces import Vectors
from dubito.resources import resources
from dubito.resources.opening import OWN_CACHE
from dubito.resources.resources import Resources
from dubito.retrieval.index import Index
from dubito.settings import settings
from dubito.state.context import BaseContext
from dubito.state.sunar import SunarContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.tests.scripted import ScriptedChat, ScriptedEncoder


def chat_model(name: str, concurrency: int) -> BaseContext:
    return BaseContext(llm=name, concurrency=concurrency)


async def test_a_model_is_opened_once_whatever_the_concurrency(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_chat_model(name: str) -> ScriptedChat:
        opened.append(name)
        return ScriptedChat(name=name)

    monkeypatch.setattr(resources, "open_chat_model", open_chat_model)
    registry = Resources()
    four, again, eight = await asyncio.gather(
        registry.llm(chat_model("a", 4)), registry.llm(chat_model("a", 4)), registry.llm(chat_model("a", 8))
    )
    assert opened == ["a"]
    assert four is again, "one gate bounds all callers of one concurrency"
    assert eight.model is four.model
    await registry.llm(chat_model("b", 4))
    assert opened == ["a", "b"]


@pytest.mark.parametrize("name", ["", "gpt", "vllm:", "hf:", "openai"])
async def test_an_unknown_name_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UserFault, match="use one of embedded, vllm:URL#model"):
        await Resources().llm(chat_model(name, 1))
    with pytest.raises(UserFault, match="use one of embedded, st:folder"):
        await Resources().encoder_named(name)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("The bridge is old.")
    return folder


def over(corpus: Path) -> VanillaRagContext:
    return VanillaRagContext(corpus=str(corpus), chunker="words:100")


async def texts(registry: Resources, corpus: Path) -> list[str]:
    index = cast("Index", await registry.retriever(over(corpus)))
    return [chunk["text"] for chunk in index.chunks]


async def test_a_forgotten_corpus_is_closed_and_read_anew_and_no_other(notes: Path, tmp_path: Path) -> None:
    registry = Resources(encoder=ScriptedEncoder())
    kept = await registry.retriever(VanillaRagContext(corpus="sample", chunker="words:100"))
    opened = [await registry.retriever(over(notes)), await registry.first_stage(over(notes))]
    left = [weakref.ref(one) for one in opened]
    (notes / "a.txt").write_text("The bridge is new.")
    assert await texts(registry, notes) == ["The bridge is old."]
    registry.forget(str(notes))
    del opened
    for _ in range(600):
        gc.collect()
        if all(one() is None for one in left):
            break
        await asyncio.sleep(0.05)  # the loop that opened them lets go of them at its next turn
    assert [one() for one in left] == [None, None]
    assert await texts(registry, notes) == ["The bridge is new."]
    assert await registry.retriever(VanillaRagContext(corpus="sample", chunker="words:100")) is kept


async def test_an_index_as_a_live_retriever_stays_an_index(notes: Path) -> None:
    index = await Resources().retriever(over(notes))
    assert await Resources(retriever=index).retriever(over(notes)) is index, "with its document graph and BM25"


async def test_who_waits_for_a_corpus_that_is_forgotten_still_gets_it(notes: Path) -> None:
    class Slow(ScriptedEncoder):
        asked, let = asyncio.Event(), asyncio.Event()

        async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
            self.asked.set()
            await self.let.wait()
            return await super().embed(texts, query=query)

    encoder = Slow()
    registry = Resources(encoder=encoder)
    (notes / "a.txt").write_text("The bridge was never seen before.")  # else its index is in the cache
    first = asyncio.create_task(texts(registry, notes))
    while not encoder.asked.is_set():
        assert not first.done()
        await asyncio.sleep(0.01)
    registry.forget(str(notes))
    (notes / "a.txt").write_text("The bridge has changed.")
    second = asyncio.create_task(texts(registry, notes))
    await asyncio.sleep(0.05)
    start_in_background(_set(encoder.let)).result(30)
    assert list(await asyncio.gather(first, second)) == [
        ["The bridge was never seen before."],
        ["The bridge has changed."],
    ]


async def _set(event: asyncio.Event) -> None:
    event.set()


async def test_a_folder_keeps_what_is_computed_from_it_if_it_has_a_place_for_it(notes: Path) -> None:
    async def use(registry: Resources) -> list[str]:
        context = SunarContext(corpus=str(notes), chunker="words:100", first_stage="bm25", graph_encoder="embedded")
        await registry.first_stage(context)
        await registry.document_graph(context)
        return sorted(f"{file.parent.parent.name}/{file.name}" for file in settings().cache.rglob("*.*"))

    before = await use(Resources(encoder=ScriptedEncoder()))
    (notes / OWN_CACHE).mkdir()
    (notes / "a.txt").write_text("The bridge has a place of its own.")
    assert await use(Resources(encoder=ScriptedEncoder())) == before
    kept = {file.name for file in (notes / OWN_CACHE).rglob("*") if file.is_file()}
    assert {"chunks.jsonl", "vectors.npy"} <= kept
    assert len(list((notes / OWN_CACHE / "derived").iterdir())) == 2  # the search by words and the graph
