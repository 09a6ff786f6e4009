"""The embedded encoder as it ships, and sentence-transformers folders of other makes."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import UserFault
from dubito.models import encoders
from dubito.models.embedding_cache import CachedEncoder
from dubito.models.encoders import BATCH, SentenceTransformersEncoder
from dubito.models.weights import minilm_folder
from huggingface_hub import utils
from sentence_transformers import SentenceTransformer
from transformers.utils import logging

pytestmark = pytest.mark.weights

RELATED = ["The cat sleeps on the sofa.", "A kitten is napping on the couch."]
UNRELATED = "Interest rates rose by a quarter point."


@pytest.fixture(scope="module")
def minilm() -> SentenceTransformersEncoder:
    return SentenceTransformersEncoder("embedded", str(minilm_folder()))


async def test_minilm_embeds_unit_vectors_that_tell_meaning(minilm: SentenceTransformersEncoder) -> None:
    vectors = await minilm.embed([*RELATED, UNRELATED])
    assert vectors.shape == (3, 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    assert vectors[0] @ vectors[1] > 0.5
    assert vectors[0] @ vectors[2] < 0.2
    assert await minilm.dimension() == 384
    assert await minilm.max_tokens() == 256


async def test_it_lends_its_tokenizer(minilm: SentenceTransformersEncoder) -> None:
    count = await minilm.token_counter()
    assert count is not None
    assert count("A ferry crosses the bay.") == 6  # five words and a full stop, each one word piece
    assert count("word " * 1000) == 1000  # not cut at the length that the model reads


async def test_it_agrees_with_sentence_transformers(minilm: SentenceTransformersEncoder) -> None:
    model = await asyncio.to_thread(SentenceTransformer, str(minilm_folder()))
    expected = model.encode(RELATED, normalize_embeddings=True, show_progress_bar=False)
    np.testing.assert_allclose(await minilm.embed(RELATED), expected, atol=1e-6)
    np.testing.assert_allclose(await minilm.embed(RELATED, query=True), expected, atol=1e-6)


async def test_no_texts_and_empty_texts(minilm: SentenceTransformersEncoder) -> None:
    assert (await minilm.embed([])).shape == (0, 384)
    assert np.isfinite(await minilm.embed(["", " ", "\0"])).all()


async def test_texts_that_look_like_media_are_texts(minilm: SentenceTransformersEncoder) -> None:
    odd = ["https://example.com/cat.png", "data:image/png;base64,xx", "https://youtu.be/x", "plain"]
    assert (await minilm.embed(odd)).shape == (4, 384)


async def test_many_texts_keep_their_order(minilm: SentenceTransformersEncoder) -> None:
    texts = [f"{'word ' * (i % 13)}{i}" for i in range(BATCH + 40)]
    vectors = await minilm.embed(texts)
    picked = [0, 17, BATCH - 1, BATCH, BATCH + 39]
    alone = np.concatenate([await minilm.embed([texts[i]]) for i in picked])
    np.testing.assert_allclose(vectors[picked], alone, atol=1e-5)


async def test_it_loads_once_for_callers_at_once_and_never_blocks_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []
    load = encoders._load
    monkeypatch.setattr(encoders, "_load", lambda source: loads.append(source) or load(source))  # type: ignore[func-returns-value]
    encoder = SentenceTransformersEncoder("embedded", str(minilm_folder()))
    with blockbuster_ctx():
        rows = await asyncio.gather(*(encoder.embed([text]) for text in RELATED * 4))
    assert len(loads) == 1
    for row in rows[::2]:
        np.testing.assert_array_equal(row, rows[0])


def test_it_is_used_from_several_loops_and_threads(minilm: SentenceTransformersEncoder) -> None:
    first = asyncio.run(minilm.embed(RELATED))
    results: list[bool] = []

    def work() -> None:
        results.append(np.allclose(asyncio.run(minilm.embed(RELATED)), first, atol=1e-6))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


async def test_a_question_does_not_wait_for_a_whole_corpus(minilm: SentenceTransformersEncoder) -> None:
    await minilm.dimension()
    corpus = asyncio.create_task(minilm.embed(["some words of a passage " * 2] * (8 * BATCH)))
    await asyncio.sleep(0.1)
    await minilm.embed(["a question"], query=True)
    assert not corpus.done()
    corpus.cancel()
    with pytest.raises(asyncio.CancelledError):
        await corpus


async def test_an_asymmetric_encoder_gets_its_prompts(tmp_path: Path) -> None:
    folder = tmp_path / "asymmetric"
    await asyncio.to_thread(shutil.copytree, minilm_folder(), folder)
    config = {"prompts": {"query": "query: ", "document": "passage: "}}
    await asyncio.to_thread((folder / "config_sentence_transformers.json").write_text, json.dumps(config))
    plain = SentenceTransformersEncoder("embedded", str(minilm_folder()))
    asymmetric = SentenceTransformersEncoder("st:x", str(folder))
    for query, prompt in ((True, "query: "), (False, "passage: ")):
        expected = await plain.embed([prompt + text for text in RELATED])
        np.testing.assert_allclose(await asymmetric.embed(RELATED, query=query), expected, atol=1e-6)


async def test_the_libraries_are_left_as_talkative_as_they_were() -> None:
    hub, messages = cast("Any", utils), cast("Any", logging)
    messages.enable_progress_bar()
    await SentenceTransformersEncoder("embedded", str(minilm_folder())).dimension()
    assert messages.is_progress_bar_enabled()
    assert not hub.are_progress_bars_disabled()


def broken_folder(tmp_path: Path) -> str:
    folder = tmp_path / "broken"
    shutil.copytree(minilm_folder(), folder)
    (folder / "model.safetensors").write_bytes(b"nothing")
    return str(folder)


async def test_what_cannot_be_loaded_is_refused_and_may_be_tried_again(tmp_path: Path) -> None:
    folder = await asyncio.to_thread(broken_folder, tmp_path)
    encoder = SentenceTransformersEncoder(f"st:{folder}", folder)
    with pytest.raises(UserFault, match=r"cannot be loaded.*local sentence-transformers folder works too"):
        await encoder.embed(["a"])
    await asyncio.to_thread(shutil.copy, minilm_folder() / "model.safetensors", folder)
    assert (await encoder.embed(["a"])).shape == (1, 384)


@pytest.mark.parametrize("source", ["/no/such/folder", "~/no/such/folder", "./no-such-folder", "no/such/folder"])
async def test_a_folder_that_is_not_there_is_named(source: str) -> None:
    with pytest.raises(UserFault, match=f"no encoder folder '{source}'"):
        await SentenceTransformersEncoder("st:x", source).embed(["a"])


def test_loading_prints_nothing_and_a_hub_that_is_out_of_reach_is_given_up_soon() -> None:
    code = (
        "import asyncio, sys; from dubito.errors import UserFault;"
        "from dubito.models.encoders import SentenceTransformersEncoder as E;"
        "from dubito.models.weights import minilm_folder\n"
        "print(asyncio.run(E('embedded', str(minilm_folder())).embed(['a'] * 300)).shape)\n"
        "print('embedded', file=sys.stderr)\n"
        "try: asyncio.run(E('st:x', 'nobody/no-such-encoder').embed(['a']))\n"
        "except UserFault as fault: print(fault)"
    )
    # a port that nothing listens on, so that the test asks no real hub
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=environment
    )
    shape, fault = done.stdout.splitlines()
    assert shape == "(300, 384)"
    assert done.stderr.startswith("embedded\n")
    assert "'nobody/no-such-encoder' cannot be loaded" in fault
    assert "local sentence-transformers folder works too" in fault


async def test_an_encoder_that_is_not_on_this_machine_is_refused_offline() -> None:
    with pytest.raises(UserFault, match=r"'nobody/no-such-encoder' cannot be loaded.*folder works too"):
        await SentenceTransformersEncoder("st:x", "nobody/no-such-encoder").embed(["a"])


async def test_the_cache_gives_what_the_encoder_gave(minilm: SentenceTransformersEncoder, tmp_path: Path) -> None:
    first = await CachedEncoder(minilm, tmp_path / "e.sqlite").embed([*RELATED, UNRELATED])
    np.testing.assert_array_equal(
        await CachedEncoder(minilm, tmp_path / "e.sqlite").embed([*RELATED, UNRELATED]), first
    )
