"""SPLADE as a first stage, with a tiny sparse encoder of random weights that is made here."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dubito.errors import UserFault
from dubito.models import sparse_encoder
from dubito.models.interfaces import Vectors
from dubito.retrieval import sparse
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.chunking import embedding_text
from dubito.retrieval.corpus import Corpus, Document
from dubito.retrieval.first_stage import open_first_stage
from dubito.retrieval.index import Index
from dubito.tests.small_bert import save_bert
from sentence_transformers import SparseEncoder
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling

pytestmark = pytest.mark.weights

WORDS = ["ferry", "bay", "tide", "river", "lune", "isle", "sand", "cross", "walk", "guide"]


def make_model(folder: Path, seed: int, words: Sequence[str] = WORDS) -> Path:
    """A SPLADE model of 2 layers and 16 dimensions, saved; of its weighted words about a half are not 0."""
    base = folder.with_name(folder.name + "-base")
    save_bert("BertForMaskedLM", base, words, seed=seed, initializer_range=1.0)
    SparseEncoder(modules=[MLMTransformer(str(base)), SpladePooling()], device="cpu").save(str(folder))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("splade") / "model", 0)


class NoEncoder:
    name = "none"

    async def dimension(self) -> int:
        return 2

    async def token_counter(self) -> Callable[[str], int] | None:
        return None

    async def max_tokens(self) -> int | None:
        return None

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        return np.tile(np.array([[1, 0]], dtype=np.float32), (len(texts), 1))


async def index_of(texts: Sequence[str]) -> Index:
    documents = tuple(Document(f"d{i}", "Walk" if i % 2 else "", text) for i, text in enumerate(texts))
    return await Index.build(Corpus(documents), open_chunker("words:100"), NoEncoder())


TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, size=1 + i % 6)) for i in range(21)]
TEXTS += ["ferry bay", "ferry bay"]


async def test_scores_are_the_dense_product_of_the_models_own_vectors(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparse, "BATCH", 5)
    index, told = await index_of(TEXTS), []
    stage = await open_first_stage(f"splade:{model}", index, tmp_path, lambda *step: told.append(step))
    assert told == [(5, 23), (10, 23), (15, 23), (20, 23), (23, 23)]
    own = SparseEncoder(str(model), device="cpu")
    documents = own.encode_document([embedding_text(chunk) for chunk in index.chunks], convert_to_sparse_tensor=False)
    asked = own.encode_query(["cross the bay"], convert_to_sparse_tensor=False)
    expected = (documents.numpy().astype(float) @ asked.numpy()[0].astype(float)).tolist()
    assert 0.1 < (documents.numpy() > 0).mean() < 0.9  # the vectors are sparse, and not empty
    found = await stage.search("cross the bay", 50)
    rows = [int(chunk["doc_id"][1:]) for chunk in found]
    np.testing.assert_allclose([chunk["score"] for chunk in found], [expected[row] for row in rows], rtol=1e-4)
    np.testing.assert_allclose(
        [chunk["score"] for chunk in found], sorted(filter(None, expected), reverse=True), rtol=1e-4
    )
    assert [chunk["doc_id"] for chunk in await stage.search("cross the bay", 3)] == [f"d{row}" for row in rows[:3]]
    assert stage.name == f"splade:{model}"


async def test_it_is_encoded_once_read_memory_mapped_and_fused(tmp_path: Path, model: Path) -> None:
    index, told, name = await index_of(TEXTS), [], f"splade:{model}"
    first = await open_first_stage(name, index, tmp_path, lambda *step: told.append(step))
    again = await open_first_stage(name, index, tmp_path, lambda *step: told.append(step))
    assert told == [(23, 23)]
    opened: Any = again
    assert isinstance(opened.ranker._postings.data, np.memmap)
    assert await first.search("tide", 9) == await again.search("tide", 9)
    both = await (await open_first_stage(f"hybrid:bm25+{name}", index, tmp_path)).search("tide", 99)
    words = [chunk["id"] for chunk in await (await open_first_stage("bm25", index, tmp_path)).search("tide", 99)]
    learned = [chunk["id"] for chunk in await first.search("tide", 99)]
    best = both[0]
    assert best["score"] == pytest.approx(
        sum(1 / (61 + ranking.index(best["id"])) for ranking in (words, learned) if best["id"] in ranking)
    )
    assert {chunk["id"] for chunk in both} == {*words, *learned}


async def test_other_weights_under_the_same_name_encode_the_chunks_again(tmp_path: Path) -> None:
    folder, index, found = tmp_path / "model", await index_of(TEXTS), []
    for seed in (1, 2):
        make_model(folder, seed)
        caches = (tmp_path / "shared", tmp_path / f"fresh{seed}")
        stages = [await open_first_stage(f"splade:{folder}", index, cache) for cache in caches]
        found.append(await stages[0].search("tide", 5))
        assert found[-1] == await stages[1].search("tide", 5)
        for part in (folder, tmp_path / "model-base"):
            shutil.rmtree(part)
    assert found[0] != found[1]


async def test_another_model_under_the_same_name_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_encoder, "fingerprint", lambda source: "")  # as of a name on the hub
    folder = make_model(tmp_path / "model", 1)
    index = await index_of(TEXTS)
    await open_first_stage(f"splade:{folder}", index, tmp_path / "cache")
    folder.rename(tmp_path / "old")
    (tmp_path / "model-base").rename(tmp_path / "old-base")
    make_model(folder, 1, [*WORDS, "more"])
    stage = await open_first_stage(f"splade:{folder}", index, tmp_path / "cache")
    with pytest.raises(UserFault, match=r"has 16 words and had 15 when the chunks were encoded: delete .*derived"):
        await stage.search("tide", 1)


async def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", 2)
    broken = SparseEncoder(str(folder), device="cpu")
    with torch.no_grad():
        next(iter(broken.parameters())).fill_(float("nan"))
    broken.save(str(tmp_path / "broken"))
    with pytest.raises(UserFault, match="gave weights that are not finite"):
        await open_first_stage(f"splade:{tmp_path / 'broken'}", await index_of(TEXTS), tmp_path / "cache")


async def test_a_model_that_cannot_be_had_says_that_a_folder_will_do(tmp_path: Path) -> None:
    with pytest.raises(UserFault, match=r"cannot be loaded \(.*\); a local .* folder works too: splade:/path"):
        await open_first_stage("splade:naver/no-such-splade", await index_of(["a"]), tmp_path)


async def test_a_splade_folder_that_is_not_there_is_named_at_first_use(tmp_path: Path) -> None:
    for name in ("splade:/not/there", "hybrid:bm25+splade:/a+b"):
        with pytest.raises(UserFault, match=r"There is no sparse encoder folder '/(not/there|a\+b)'"):
            await open_first_stage(name, await index_of(["a"]), tmp_path)
