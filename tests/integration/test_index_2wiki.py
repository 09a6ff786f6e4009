"""Real passages, real weights: index a small part of 2WikiMultihopQA and find what supports a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.models.encoders import SentenceTransformersEncoder
from dubito.models.weights import minilm_folder
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.corpus import Corpus, read_corpus
from dubito.retrieval.index import Index, cached_index

pytestmark = pytest.mark.weights

QUESTIONS, K = 5, 5


@pytest.fixture(scope="module")
def encoder() -> SentenceTransformersEncoder:
    return SentenceTransformersEncoder("embedded", str(minilm_folder()))


@pytest.fixture
def folder(test_data: Path) -> Path:
    path = test_data / "data" / "2wikimultihopqa"
    if not path.is_dir():
        pytest.skip(f"{path} is not there")
    return path


@pytest.fixture
def records(folder: Path) -> list[dict[str, Any]]:
    some: list[dict[str, Any]] = json.loads((folder / "dev_distractor.json").read_text(encoding="utf-8"))[:QUESTIONS]
    return some


async def test_finds_the_nearest_chunks_and_with_them_what_supports_an_answer(
    records: list[dict[str, Any]], encoder: SentenceTransformersEncoder, tmp_path: Path
) -> None:
    few = tmp_path / "questions.json"
    few.write_text(json.dumps(records), encoding="utf-8")
    told: list[tuple[int, int]] = []
    built = await cached_index(few, "words:100", encoder, tmp_path, progress=lambda *step: told.append(step))
    pooled = {(title, " ".join(sentences)) for record in records for title, sentences in record["context"]}
    assert built.manifest.documents == len(pooled)
    assert built.manifest.dimension == 384
    assert told[-1] == (built.manifest.chunks, built.manifest.chunks)

    index = await cached_index(few, "words:100", encoder, tmp_path, progress=lambda *_: pytest.fail("it was built"))
    whole = await index.pool("", None)
    texts = [f"{whole.chunk(i)['title']}\n{whole.chunk(i)['text']}" for i in range(len(whole))]
    vectors = await encoder.embed(texts)
    found, wanted = 0, 0
    for record in records:
        pool = await index.pool(record["question"], K)
        scores = vectors @ (await encoder.embed([record["question"]], query=True))[0]
        np.testing.assert_allclose(pool.vectors @ pool.query, np.sort(scores)[::-1][:K], atol=1e-4)
        titles = {title for title, _ in record["supporting_facts"]}
        found += len(titles & {pool.chunk(i)["title"] for i in range(K)})
        wanted += len(titles)
    chance = K / len(whole)
    assert found / wanted > 3 * chance


async def test_the_whole_corpus_is_read_and_a_slice_of_it_indexed(
    folder: Path, encoder: SentenceTransformersEncoder
) -> None:
    corpus = read_corpus(folder / "2wikimultihopqa_corpus.json")
    assert len(corpus.documents) == len({document.id for document in corpus.documents}) == 6119
    few = Corpus(corpus.documents[:60])
    index = await Index.build(few, open_chunker("words:100"), encoder)
    for number in (0, 17, 59):  # a passage's own words lead back to it
        document = few.documents[number]
        nearest = await index.pool(f"{document.title}\n{document.text[:200]}", 1)
        assert nearest.chunk(0)["doc_id"] == document.id
