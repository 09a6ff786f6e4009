"""Late interaction with a tiny multi-vector model of random weights that is made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dubito.cli import app
from dubito.errors import UserFault
from dubito.models.late_interaction import LateInteractionModel
from dubito.resources import resources
from dubito.resources.resources import Resources
from dubito.retrieval.chunkers import open_chunker
from dubito.retrieval.chunking import embedding_text
from dubito.retrieval.corpus import Corpus, Document
from dubito.retrieval.index import Index
from dubito.retrieval.late_interaction import cached_late_graph
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import ScriptedChat
from dubito.tests.small_bert import save_bert
from dubito.tests.unit.test_document_graph import NoEncoder
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from typer.testing import CliRunner

pytestmark = pytest.mark.weights

WORDS = ["ferry", "bay", "tide", "river", "lune", "isle", "sand", "cross", "walk", "guide"]
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, size=1 + i % 6)) for i in range(15)]


def make_base(folder: Path) -> Path:
    save_bert("BertModel", folder, WORDS, initializer_range=1.0)
    return folder


def make_model(folder: Path) -> Path:
    """A late-interaction model: that BERT and a projection of every token to 8 dimensions, saved."""
    base = make_base(folder.with_name(folder.name + "-base"))
    projection = Dense(16, 8, bias=False, activation_function=torch.nn.Identity(), module_input_name="token_embeddings")
    modules = [Transformer(str(base)), projection, MultiVectorMask()]
    MultiVectorEncoder(modules=modules, device="cpu").save(str(folder))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("colbert") / "model")


async def index_of(texts: list[str]) -> Index:
    documents = tuple(Document(f"d{i}", "", text) for i, text in enumerate(texts))
    return await Index.build(Corpus(documents), open_chunker("words:100"), AnyEncoder())


class AnyEncoder(NoEncoder):
    """Counts words."""

    def __init__(self) -> None:
        super().__init__("words", np.zeros((1, len(WORDS)), dtype=np.float32))

    async def embed(self, texts: Any, *, query: bool = False) -> Any:
        rows = np.array([[text.count(word) for word in WORDS] for text in texts], dtype=np.float32)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


async def test_its_maxsim_is_that_of_numpy_over_the_models_own_vectors(tmp_path: Path, folder: Path) -> None:
    index = await index_of(TEXTS)
    model = LateInteractionModel(f"colbert:{folder}", str(folder))
    graph = await cached_late_graph(index, 4, tmp_path, model)  # 16 candidates are all others
    own = MultiVectorEncoder(str(folder), device="cpu")
    found = own.encode_document([embedding_text(chunk) for chunk in index.chunks], convert_to_numpy=True)
    tokens = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in found]
    assert {rows.shape[1] for rows in tokens} == {8}
    assert len({len(rows) for rows in tokens}) > 3  # one vector a token, not one a text
    for i, chunk in enumerate(index.chunks):
        scores = [float((tokens[i] @ other.T).max(axis=1).mean()) for other in tokens]
        near = graph.neighbours(chunk["id"])
        rows = [int(name.split("#")[0][1:]) for name, _ in near]
        assert i not in rows
        np.testing.assert_allclose([score for _, score in near], [scores[row] for row in rows], atol=2e-3)
        np.testing.assert_allclose(
            [score for _, score in near],
            sorted((s for j, s in enumerate(scores) if j != i), reverse=True)[:4],
            atol=2e-3,
        )


async def test_the_vectors_are_of_length_one(folder: Path) -> None:
    model = LateInteractionModel(f"colbert:{folder}", str(folder))
    for rows in await model.tokens(["ferry bay", "", "tide " * 500]):
        assert rows.dtype == np.float32
        assert 2 <= len(rows) <= 64
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)


async def test_what_is_no_late_interaction_model_is_refused(tmp_path: Path, folder: Path) -> None:
    dense, empty = tmp_path / "dense", tmp_path / "empty"
    SentenceTransformer(modules=[Transformer(str(make_base(tmp_path / "base")))], device="cpu").save(str(dense))
    empty.mkdir()
    for source, told in (
        (tmp_path / "none", "There is no late-interaction model folder"),
        (
            dense,
            r"cannot be loaded \(it gives one vector per text, not one per token\); a local .* works too: colbert:",
        ),
        (tmp_path / "base", "one vector per text, not one per token"),
        (empty, "cannot be loaded"),
    ):
        with pytest.raises(UserFault, match=told):
            await LateInteractionModel(f"colbert:{source}", str(source)).tokens(["ferry"])


async def test_vectors_that_are_not_finite_are_refused(tmp_path: Path, folder: Path) -> None:
    broken = MultiVectorEncoder(str(folder), device="cpu")
    with torch.no_grad():
        next(iter(broken.parameters())).fill_(float("nan"))
    broken.save(str(tmp_path / "broken"))
    with pytest.raises(UserFault, match="gave vectors that are not finite"):
        await LateInteractionModel("colbert:broken", str(tmp_path / "broken")).tokens(["ferry"])


def dubito(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_at_the_command_line_it_is_built_extended_and_used(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ScriptedChat(reply=lambda system, user: "the Lune")
    monkeypatch.setattr(resources, "_shared", Resources(llm=chat, encoder=AnyEncoder()))
    first, second, out = tmp_path / "first.jsonl", tmp_path / "second.jsonl", tmp_path / "index"
    for file, some in ((first, range(10)), (second, range(10, 15))):
        write_lines(file, ({"id": f"d{i}", "text": TEXTS[i]} for i in some))
    near = ["--graph-neighbours", "2", "--graph-encoder", f"colbert:{folder}"]
    done = dubito("index", str(first), "--out", str(out), *near)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"--set graph_neighbours=2 --set graph_encoder=colbert:{folder}\n" in done.stdout
    done = dubito("index", str(second), "--add-to", str(out), *near, "--json")
    assert done.exit_code == 0, done.stdout
    figures = json.loads(done.stdout)
    assert (figures["documents"], figures["documents_added"], figures["graph_encoder"]) == (15, 5, f"colbert:{folder}")
    monkeypatch.setattr(LateInteractionModel, "tokens", None)  # the graph is there already
    chosen = [f"graph_encoder=colbert:{folder}", "graph_neighbours=2", "penalty=none", "batch_size=2"]
    said = dubito(
        *("ask", "ferry bay", "--graph", "neighbourhood", "--corpus", str(out), "--json"),
        *(part for one in chosen for part in ("--set", one)),
    )
    assert said.exit_code == 0, said.stdout
    assert any(one["parent"] for one in json.loads(said.stdout)["scored"])
    refused = dubito("index", str(first), "--out", str(tmp_path / "b"), *near[:3], "colbert:/no/such/folder")
    assert refused.exit_code == 2
    assert "There is no late-interaction model folder '/no/such/folder'." in refused.stderr
    assert not (tmp_path / "b").exists()  # refused before anything was computed
