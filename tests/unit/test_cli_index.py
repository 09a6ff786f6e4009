"""`dubito index`: a new index, one with more documents, or one sentence and the index as it was."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dubito.cli import app, indexing
from dubito.errors import UserFault
from dubito.models.background import run_in_background
from dubito.models.interfaces import Vectors
from dubito.resources import resources
from dubito.resources.resources import Resources
from dubito.retrieval.corpus import read_corpus
from dubito.retrieval.document_graph import DocumentGraph
from dubito.retrieval.index import Index
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import ScriptedChat, ScriptedEncoder
from typer.testing import CliRunner


class LetterEncoder(ScriptedEncoder):
    """Remembers the texts."""

    def __init__(self, name: str = "letters") -> None:
        self.name = name
        self.embedded: list[str] = []

    async def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        self.embedded += texts
        return await super().embed(texts, query=query)


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LetterEncoder:
    opened = LetterEncoder()
    chat = ScriptedChat(reply=lambda system, user: "the Lune")
    monkeypatch.setattr(resources, "_shared", Resources(llm=chat, encoder=opened))
    return opened


def dubito(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def file_of(folder: Path, name: str, numbers: Sequence[int]) -> str:
    records = [{"id": f"d{i}", "title": f"T{i}", "text": f"{chr(97 + i) * 4} {chr(98 + i)}"} for i in numbers]
    return str(write_lines(folder / name, records))


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_an_index_is_built_and_answers(tmp_path: Path, encoder: LetterEncoder) -> None:
    out = tmp_path / "my index"
    done = dubito("index", file_of(tmp_path, "a.jsonl", range(6)), "--out", str(out))
    assert (done.exit_code, done.stderr) == (0, "")
    figures, following = done.stdout.splitlines()
    assert re.fullmatch(r"6 documents, 6 chunks \(words:100\), dimension 128, \S+ [kM]B, \d+\.\d s", figures)
    assert following == f"Now: dubito ask \"...\" --corpus '{out}'"
    answered = json.loads(dubito("ask", "eeeee", "--graph", "vanilla_rag", "--corpus", str(out), "--json").stdout)
    assert answered["evidence"][0]["title"] == "T4"


def test_hostile_metadata_named_like_our_own_fields_stays_metadata(tmp_path: Path, encoder: LetterEncoder) -> None:
    nested: Any = "in"
    for _ in range(90):
        nested = [nested]
    own = {"metadata": {"text": "other"}, "score": "high", "start": -1, "chunk_id": 7, "heading": "\x1b[2J<script>"}
    record = {"id": "a", "title": "Ada", "text": "aaaa", **own, "deep": nested, "url": "javascript:alert(1)\x1b[31m"}
    corpus, out = write_lines(tmp_path / "c.jsonl", [record]), tmp_path / "index"
    assert dubito("index", str(corpus), "--out", str(out)).exit_code == 0
    asked = [
        "ask",
        "aaaa",
        "--graph",
        "vanilla_rag",
        "--corpus",
        str(out),
        "--set",
        'where={"score": "high", "start": -1}',
    ]
    (found,) = json.loads(dubito(*asked, "--json").stdout)["evidence"]
    assert (found["id"], found["text"], found["start"], type(found["score"])) == ("a#0", "aaaa", 0, float)
    assert found["metadata"] | {"url": 0} == {
        **own,
        "metadata": '{"text": "other"}',
        "deep": json.dumps(nested),
        "url": 0,
    }
    shown = dubito(*asked)
    assert shown.exit_code == 0
    assert "\x1b" not in shown.stdout
    write_lines(corpus, [record | {"deep": [[[[[[[[[[[nested]]]]]]]]]]]}])
    refused = dubito("index", str(corpus), "--out", str(out), "--force")
    assert refused.exit_code == 2
    assert "line 1: the JSON is broken (it is nested too deeply)" in " ".join(refused.stderr.split())


def test_the_graph_of_an_index_is_found_in_the_cache(
    tmp_path: Path, encoder: LetterEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, corpus = tmp_path / "index", file_of(tmp_path, "a.jsonl", range(10, 16))
    done = dubito("index", corpus, "--out", str(out), "--graph-neighbours", "2")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "The 2 nearest neighbours of every chunk are in the cache folder" in " ".join(done.stdout.split())
    monkeypatch.setattr(DocumentGraph, "build", None)  # it is there already
    chosen = ["--set", "graph_neighbours=2", "--set", "penalty=none", "--set", "first_stage=dense", "-k", "3"]
    said = dubito("ask", "eeeee", "--graph", "neighbourhood", "--corpus", str(out), "--json", *chosen)
    assert len(json.loads(said.stdout)["scored"]) == 6


def test_an_index_is_replaced_only_by_force_and_other_folders_never(tmp_path: Path, encoder: LetterEncoder) -> None:
    corpus, out = file_of(tmp_path, "a.jsonl", range(6)), tmp_path / "index"
    first = json.loads(dubito("index", corpus, "--out", str(out), "--json").stdout)
    assert (first["documents"], first["chunks"], first["dimension"], first["problems"]) == (6, 6, 128, [])
    refused = dubito("index", corpus, "--out", str(out))
    assert refused.exit_code == 2
    assert "replace it with --force" in refused.stderr
    assert dubito("index", corpus, "--out", str(out), "--force").exit_code == 0
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    encoder.embedded.clear()
    refused = dubito("index", corpus, "--out", str(mine), "--force", "--json")
    assert refused.exit_code == 2
    assert "exists and is not an index" in json.loads(refused.stdout)["error"]["message"]
    assert (mine / "thesis.txt").read_text() == "years of work"
    assert encoder.embedded == []


def test_broken_records_are_refused_or_skipped_and_listed(tmp_path: Path, encoder: LetterEncoder) -> None:
    corpus, out = file_of(tmp_path, "a.jsonl", range(6)), tmp_path / "index"
    with Path(corpus).open("a") as file:
        file.write("{broken\n" * 25)
    assert dubito("index", corpus, "--out", str(out)).exit_code == 2
    assert not out.exists()
    done = dubito("index", corpus, "--out", str(out), "--on-bad-record", "skip")
    assert done.exit_code == 0
    assert done.stdout.replace("\n", " ").count("Skipped: ") == 20
    assert "and 5 more records skipped" in done.stdout


def test_what_libraries_print_stays_out_of_the_json(
    tmp_path: Path, encoder: LetterEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def loud(texts: Sequence[str], *, query: bool = False) -> Vectors:
        print("loading weights")
        return await ScriptedEncoder.embed(encoder, texts, query=query)

    monkeypatch.setattr(encoder, "embed", loud)
    done = dubito("index", file_of(tmp_path, "a.jsonl", range(6)), "--out", str(tmp_path / "index"), "--json")
    assert json.loads(done.stdout)["chunks"] == 6
    assert "loading weights\n" in done.stderr


def test_new_documents_are_added_and_only_they_are_embedded(tmp_path: Path, encoder: LetterEncoder) -> None:
    out, whole = tmp_path / "index", tmp_path / "whole"
    dubito("index", file_of(tmp_path, "a.jsonl", range(8)), "--out", str(out), "--chunker", "words:1")
    encoder.embedded.clear()
    done = dubito("index", file_of(tmp_path, "b.jsonl", range(8, 11)), "--add-to", str(out))
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("3 documents added; the index now holds\n11 documents, 22 chunks (words:1), ")
    assert len(encoder.embedded) == 6
    dubito("index", file_of(tmp_path, "c.jsonl", range(11)), "--out", str(whole), "--chunker", "words:1")
    added, anew = content(out), content(whole)
    assert added.keys() == anew.keys() == {"chunks.jsonl", "line_ends.npy", "manifest.json", "vectors.npy"}
    assert added["chunks.jsonl"] == anew["chunks.jsonl"]
    assert added["vectors.npy"] == anew["vectors.npy"]
    one, other = json.loads(added["manifest.json"]), json.loads(anew["manifest.json"])
    assert one.pop("corpus") != other.pop("corpus")  # of the corpora it grew from
    assert one == other
    said = dubito("ask", "kkkk", "--graph", "vanilla_rag", "--corpus", str(out), "--json")
    assert json.loads(said.stdout)["evidence"][0]["doc_id"] == "d10"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_graph_is_extended_too(tmp_path: Path, encoder: LetterEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    out, near = tmp_path / "index", ["--graph-neighbours", "3"]
    dubito("index", file_of(tmp_path, "a.jsonl", range(8)), "--out", str(out), *near)
    monkeypatch.setattr(DocumentGraph, "build", None)  # nothing is built anew
    done = dubito("index", file_of(tmp_path, "b.jsonl", range(8, 11)), "--add-to", str(out), *near, "--json")
    assert done.exit_code == 0, done.stdout
    figures = json.loads(done.stdout)
    assert (figures["documents"], figures["documents_added"], figures["graph_neighbours"]) == (11, 3, 3)
    assert figures["graph_encoder"] == "letters"
    chosen = ["--set", "graph_neighbours=3", "--set", "penalty=none", "--set", "first_stage_n=1", "--set", "budget=4"]
    said = dubito("ask", "jjjj", "--graph", "neighbourhood", "--corpus", str(out), "--json", *chosen)
    scored = json.loads(said.stdout)["scored"]
    assert len(scored) == 4
    assert {one["chunk_id"].split("#")[0] for one in scored} > {"d9", "d8", "d10"}  # those that share a letter


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--encoder", "letters", "--chunker", "words:2"], "was cut by 'words:1', not by 'words:2': choose that"),
        (["--force"], "--force replaces an index and --add-to keeps it"),
        (["--replace", "--out", "elsewhere"], "--out DIR for a new index, or --add-to DIR to add to an index"),
        (["--graph-encoder", "embedded"], "--graph-encoder needs --graph-neighbours K"),
        (["--graph-neighbours", "2", "--graph-encoder", "colbert:/no/such"], "no late-interaction model folder"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, encoder: LetterEncoder, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    out = tmp_path / "index"
    dubito("index", file_of(tmp_path, "a.jsonl", range(4)), "--out", str(out), "--chunker", "words:1")
    before = content(out)
    encoder.embedded.clear()
    refused = dubito("index", file_of(tmp_path, "b.jsonl", range(4, 6)), "--add-to", str(out), *arguments)
    assert refused.exit_code == 2
    assert told in " ".join(refused.stderr.split())
    assert (content(out), encoder.embedded) == (before, [])
    assert not Path("elsewhere").exists()


def test_a_graph_that_fails_late_leaves_the_index_as_it_was(
    tmp_path: Path, encoder: LetterEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, near = tmp_path / "index", ["--graph-neighbours", "2"]
    dubito("index", file_of(tmp_path, "a.jsonl", range(4)), "--out", str(out))
    before, again = content(out), ["index", file_of(tmp_path, "b.jsonl", range(4, 6)), "--add-to", str(out), *near]

    async def fails(*_: object, **__: object) -> None:
        raise UserFault("The weights cannot be loaded.")

    with monkeypatch.context() as patch:
        patch.setattr(DocumentGraph, "build", fails)
        refused = dubito(*again)
    assert (refused.exit_code, refused.stderr) == (2, "The weights cannot be loaded.\n")
    assert content(out) == before
    assert dubito(*again).exit_code == 0


def test_documents_that_are_there_already_are_refused(tmp_path: Path, encoder: LetterEncoder) -> None:
    out = tmp_path / "index"
    dubito("index", file_of(tmp_path, "a.jsonl", range(8)), "--out", str(out))
    before = content(out)
    encoder.embedded.clear()
    refused = dubito("index", file_of(tmp_path, "b.jsonl", range(4, 10)), "--add-to", str(out))
    assert refused.exit_code == 2
    assert (
        "4 of the 6 documents to add are in the index already ('d4', 'd5', 'd6', ...): leave them out, give new "
        "documents new ids, or replace these with --replace."
    ) in " ".join(refused.stderr.split())
    assert (content(out), encoder.embedded) == (before, [])


def test_another_encoder_is_refused(tmp_path: Path, encoder: LetterEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "index"
    dubito("index", file_of(tmp_path, "a.jsonl", range(4)), "--out", str(out))
    before = content(out)
    monkeypatch.setattr(resources, "_shared", Resources(encoder=LetterEncoder("other")))
    refused = dubito("index", file_of(tmp_path, "b.jsonl", range(4, 6)), "--add-to", str(out))
    assert refused.exit_code == 2
    assert "was made with the encoder 'letters', not with 'other'" in " ".join(refused.stderr.split())
    assert content(out) == before


def test_what_is_no_index_is_refused(tmp_path: Path, encoder: LetterEncoder) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    corpus = file_of(tmp_path, "a.jsonl", range(4))
    for target in ("mine", "none", "a.jsonl"):
        refused = dubito("index", corpus, "--add-to", str(tmp_path / target))
        assert refused.exit_code == 2
        assert "is not an index: build it again with `dubito index`" in " ".join(refused.stderr.split())
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    assert dubito("index", corpus).exit_code == 2
    assert encoder.embedded == []


def test_what_another_added_meanwhile_is_not_lost(
    tmp_path: Path, encoder: LetterEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "index"
    dubito("index", file_of(tmp_path, "a.jsonl", range(4)), "--out", str(out))
    extended = Index.extended
    meanwhile: dict[str, bytes] = {}

    async def slower(self: Index, corpus: Any, chunker: Any, *progress: Any, **options: Any) -> Index:
        if not meanwhile:
            other = await extended(self, read_corpus(file_of(tmp_path, "c.jsonl", [9])), chunker)
            await other.save(out)
            meanwhile.update(content(out))
        return await extended(self, corpus, chunker, *progress, **options)

    monkeypatch.setattr(Index, "extended", slower)
    refused = dubito("index", file_of(tmp_path, "b.jsonl", range(4, 6)), "--add-to", str(out))
    assert refused.exit_code == 2
    assert "was changed in the meantime: run the command again." in " ".join(refused.stderr.split())
    assert content(out) == meanwhile
    assert dubito("index", file_of(tmp_path, "b.jsonl", range(4, 6)), "--add-to", str(out)).exit_code == 0
    assert json.loads((out / "manifest.json").read_text())["documents"] == 7


def chunks_of(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "chunks.jsonl").read_text().splitlines()]


def vectors_of(folder: Path) -> Any:
    return np.asarray(run_in_background(Index.stored(folder)).vectors)


def test_documents_are_deleted_and_the_others_stay_as_they_were(tmp_path: Path, encoder: LetterEncoder) -> None:
    out, left = tmp_path / "index", tmp_path / "left"
    dubito("index", file_of(tmp_path, "a.jsonl", range(6)), "--out", str(out), "--chunker", "words:1")
    dubito("index", file_of(tmp_path, "b.jsonl", [0, 2, 5]), "--out", str(left), "--chunker", "words:1")
    encoder.embedded.clear()
    done = dubito("index", "--delete", "d1, d3", str(out), "--delete", "d4")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("3 documents deleted; the index now holds\n3 documents, 6 chunks (words:1), ")
    assert encoder.embedded == []
    deleted, anew = content(out), content(left)
    assert deleted["chunks.jsonl"] == anew["chunks.jsonl"]
    assert deleted["vectors.npy"] == anew["vectors.npy"]
    said = json.loads(dubito("ask", "bbbb", "--graph", "vanilla_rag", "--corpus", str(out), "--json").stdout)
    assert "d1" not in {chunk["doc_id"] for chunk in said["evidence"]}


def test_an_id_may_have_a_comma(tmp_path: Path, encoder: LetterEncoder) -> None:
    records = [{"title": name, "text": "aaaa"} for name in ("Lune, River", "Lune", "Bay")]
    out = tmp_path / "index"
    dubito("index", str(write_lines(tmp_path / "a.jsonl", records)), "--out", str(out))
    assert dubito("index", "--delete", "Lune, River", str(out)).exit_code == 0
    assert [chunk["doc_id"] for chunk in chunks_of(out)] == ["Lune", "Bay"]


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ("d9,d1,d8", "The index has no documents with these ids: 'd9', 'd8'; nothing was deleted."),
        ("d0,d1,d2,d3", "These are all documents of the index: delete its folder"),
    ],
)
def test_what_cannot_be_deleted_is_named(tmp_path: Path, encoder: LetterEncoder, ids: str, told: str) -> None:
    out = tmp_path / "index"
    dubito("index", file_of(tmp_path, "a.jsonl", range(4)), "--out", str(out))
    before = content(out)
    refused = dubito("index", "--delete", ids, str(out))
    assert refused.exit_code == 2
    assert told in " ".join(refused.stderr.split())
    assert content(out) == before


def test_a_document_with_a_known_id_takes_the_new_text(tmp_path: Path, encoder: LetterEncoder) -> None:
    out = tmp_path / "index"
    dubito("index", file_of(tmp_path, "a.jsonl", range(4)), "--out", str(out))
    new = write_lines(tmp_path / "b.jsonl", [{"id": "d1", "text": "xxxx"}, {"id": "d7", "text": "yyyy"}])
    encoder.embedded.clear()
    done = dubito("index", str(new), "--add-to", str(out), "--replace")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("2 documents added, 1 document deleted; the index now holds\n5 documents, 5 chunks")
    assert len(encoder.embedded) == 2
    assert [(chunk["doc_id"], chunk["text"]) for chunk in chunks_of(out)] == [
        ("d0", "aaaa b"),
        ("d2", "cccc d"),
        ("d3", "dddd e"),
        ("d1", "xxxx"),
        ("d7", "yyyy"),
    ]
    said = json.loads(dubito("ask", "xxxx", "--graph", "vanilla_rag", "--corpus", str(out), "--json").stdout)
    assert said["evidence"][0]["doc_id"] == "d1"
    everything = dubito("index", str(new), "--add-to", str(out), "--replace", "--json")
    assert json.loads(everything.stdout)["documents"] == 5


def test_an_index_for_bm25_embeds_nothing_and_takes_vectors_later(tmp_path: Path, encoder: LetterEncoder) -> None:
    out, whole = tmp_path / "index", tmp_path / "whole"
    corpus = file_of(tmp_path, "a.jsonl", range(6))
    done = dubito("index", corpus, "--out", str(out), "--for", "bm25")
    assert (done.exit_code, done.stderr) == (0, "")
    figures, following = done.stdout.splitlines()
    assert re.fullmatch(r"6 documents, 6 chunks \(words:100\), no vectors, \S+ [kM]B, \d+\.\d s", figures)
    assert following == f'Now: dubito ask "..." --corpus {out} --graph vanilla_rag --set first_stage=bm25'
    assert content(out).keys() == {"chunks.jsonl", "line_ends.npy", "manifest.json"}
    by_words = ["--graph", "vanilla_rag", "--corpus", str(out), "--set", "first_stage=bm25", "--json"]
    answered = json.loads(dubito("ask", "dddd", *by_words).stdout)
    assert [chunk["doc_id"] for chunk in answered["evidence"]] == ["d3"]
    dubito("index", file_of(tmp_path, "b.jsonl", [6, 7]), "--add-to", str(out))
    dubito("index", "--delete", "d7", str(out))
    assert encoder.embedded == []
    refused = dubito("ask", "dddd", "--graph", "vanilla_rag", "--corpus", str(out))
    assert refused.exit_code == 2
    command = re.search(r"`dubito (index --add encoder .*?)`", " ".join(refused.stderr.split()))
    assert command is not None
    ids = [chunk["id"] for chunk in chunks_of(out)]
    added = dubito(*shlex.split(command[1].replace("/ ", "/")))
    assert (added.exit_code, added.stderr) == (0, "")
    assert [chunk["id"] for chunk in chunks_of(out)] == ids
    dubito("index", file_of(tmp_path, "c.jsonl", range(7)), "--out", str(whole))
    assert content(out)["chunks.jsonl"] == content(whole)["chunks.jsonl"]
    assert content(out)["vectors.npy"] == content(whole)["vectors.npy"]
    said = dubito("ask", "dddd", "--graph", "vanilla_rag", "--corpus", str(out), "--json")
    assert json.loads(said.stdout)["evidence"][0]["doc_id"] == "d3"


def test_a_graph_and_the_words_are_added_later(
    tmp_path: Path, encoder: LetterEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, words = tmp_path / "index", tmp_path / "words"
    corpus = file_of(tmp_path, "a.jsonl", range(6))
    dubito("index", corpus, "--out", str(out))
    dubito("index", corpus, "--out", str(words), "--for", "bm25")
    before = content(out)
    for part in ("bm25", "graph"):
        done = dubito("index", "--add", part, str(out), "--json")
        assert done.exit_code == 0, done.stdout
    assert json.loads(done.stdout)["graph_neighbours"] == 10
    assert content(out) == before
    monkeypatch.setattr(DocumentGraph, "build", None)  # it is there already
    said = dubito("ask", "eeeee", "--graph", "neighbourhood", "--corpus", str(out), "--json", "--set", "penalty=none")
    assert said.exit_code == 0, said.stdout
    refused = dubito("index", "--add", "graph", str(words))
    told = f"add them first, with `dubito index --add encoder {words}`."
    assert told.replace(" ", "") in refused.stderr.replace("\n", "").replace(" ", "")
    assert dubito("index", "--add", "encoder", str(out)).exit_code == 2
    monkeypatch.setattr(resources, "_shared", Resources(encoder=LetterEncoder("other")))
    assert dubito("index", "--add", "encoder", str(out), "--encoder", "other", "--force").exit_code == 0
    assert json.loads((out / "manifest.json").read_text())["encoder"] == "other"
    np.testing.assert_array_equal(vectors_of(out).shape, (6, 128))


@pytest.mark.parametrize(
    "arguments",
    [
        ["CORPUS", "--out", "NEW", "--for", "bm25", "--encoder", "letters"],
        ["CORPUS", "--out", "NEW", "--for", "bm25", "--graph-neighbours", "2"],
        ["CORPUS", "--out", "NEW", "--for", "bm25", "--chunker", "tokens:64/0"],
        ["CORPUS", "--out", "NEW", "--for", "bm25", "--chunker", "semantic:0.6/512"],
        ["CORPUS", "--out", "NEW", "--for", "bm25", "--search", "flat"],
        ["CORPUS", "--out", "NEW", "--search", "hsnw"],
        ["CORPUS", "--out", "NEW", "--search", "hnsw"],
        ["CORPUS", "--add-to", "INDEX", "--search", "hnsw"],
        ["INDEX", "--delete", "d0", "--search", "flat"],
        ["WORDS", "--add", "search"],
        ["CORPUS", "--out", "NEW", "--replace"],
        ["CORPUS", "--add-to", "INDEX", "--for", "bm25"],
        ["INDEX", "--delete", "d0", "--add", "bm25"],
        ["INDEX", "--delete", "d0", "--chunker", "words:1"],
        ["INDEX", "--delete", "d0", "--force"],
        ["CORPUS", "--delete", "d0"],
        ["NEW", "--add", "encoder"],
    ],
)
def test_options_that_do_not_fit_together_are_refused_in_a_sentence(
    tmp_path: Path, encoder: LetterEncoder, arguments: list[str]
) -> None:
    places = {
        "CORPUS": file_of(tmp_path, "a.jsonl", range(2)),
        "INDEX": str(tmp_path / "i"),
        "NEW": str(tmp_path / "n"),
        "WORDS": str(tmp_path / "w"),
    }
    dubito("index", places["CORPUS"], "--out", places["INDEX"])
    dubito("index", places["CORPUS"], "--out", places["WORDS"], "--for", "bm25")
    before = content(tmp_path / "i")
    refused = dubito("index", *(places.get(one, one) for one in arguments))
    assert refused.exit_code == 2
    assert len(refused.stderr.strip()) > 20
    assert "Traceback" not in refused.stderr
    assert content(tmp_path / "i") == before
    assert not (tmp_path / "n").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def many(folder: Path, name: str, numbers: Sequence[int]) -> str:
    return str(write_lines(folder / name, [{"id": f"d{i}", "text": f"text {i} {i * i}"} for i in numbers]))


def test_a_kind_of_search_is_built_shown_changed_and_kept(tmp_path: Path, encoder: LetterEncoder) -> None:
    out = tmp_path / "index"
    done = dubito("index", many(tmp_path, "a.jsonl", range(1100)), "--out", str(out), "--search", "ivf")
    assert (done.exit_code, done.stderr) == (0, "")
    told = re.search(
        r"Search by ivf \(IVF28,SQ8, nprobe \d+\): recall@10 (\d\.\d{3}) against exact search, for 200 of the chunks\.",
        " ".join(done.stdout.split()),
    )
    assert told is not None
    about = json.loads((out / "manifest.json").read_text())["search"]
    assert float(told[1]) == pytest.approx(about["recall"], abs=5e-4)
    said = dubito("ask", "text 700 490000", "--graph", "vanilla_rag", "--corpus", str(out), "--json")
    assert json.loads(said.stdout)["evidence"][0]["doc_id"] == "d700"
    encoder.embedded.clear()
    changed = dubito("index", "--add", "search", str(out), "--search", "hnsw", "--json")
    assert (changed.exit_code, json.loads(changed.stdout)["search"]["kind"]) == (0, "hnsw")
    assert encoder.embedded == []
    new = str(write_lines(tmp_path / "b.jsonl", [{"id": "new", "text": "text 77777777"}]))
    added = dubito("index", new, "--add-to", str(out), "--json")
    assert (json.loads(added.stdout)["search"]["kind"], len(encoder.embedded)) == ("hnsw", 1)
    opened = run_in_background(Index.load(out, encoder))
    assert run_in_background(opened.rank("text 77777777", 1)).rows.tolist() == [1100]
    deleted = dubito("index", "--delete", ",".join(f"d{i}" for i in range(500)), str(out), "--json")
    assert json.loads(deleted.stdout)["search"] is None  # too few are left
    assert content(out).keys() == {"chunks.jsonl", "line_ends.npy", "manifest.json", "vectors.npy"}
    refused = dubito("index", "--add", "search", str(out), "--search", "ivf_pq")
    assert refused.exit_code == 2
    assert "needs at least 1,000 chunks and the index has 601" in " ".join(refused.stderr.split())
    assert dubito("index", "--add", "search", str(out)).exit_code == 0  # auto: exact


def test_of_two_writers_the_second_is_refused(tmp_path: Path, encoder: LetterEncoder) -> None:
    out, corpus = tmp_path / "index", file_of(tmp_path, "a.jsonl", range(4))
    for command in (["index", corpus, "--out", str(out)], ["index", "--delete", "d1", str(out)]):
        with indexing.only_writer(out, force=True):
            refused = dubito(*command)
        assert refused.exit_code == 2
        assert "is writing" in " ".join(refused.stderr.split())
        assert dubito("index", corpus, "--out", str(out), "--force").exit_code == 0
        assert "d1" in {chunk["doc_id"] for chunk in chunks_of(out)}


def test_what_a_killed_writer_left_is_removed_or_put_back(tmp_path: Path, encoder: LetterEncoder) -> None:
    out = tmp_path / "index"
    dubito("index", file_of(tmp_path, "a.jsonl", range(4)), "--out", str(out))
    whole = content(out)
    out.rename(tmp_path / f".index.{'a' * 32}.old")  # where folders cannot be exchanged
    (tmp_path / f".index.{'b' * 32}.partial").mkdir()
    others = {tmp_path / f".indexes.{'c' * 32}.partial", tmp_path / ".index.notes.old"}
    for other in others:
        other.mkdir()
    with indexing.only_writer(out, force=True):
        assert content(out) == whole
    assert {path for path in tmp_path.iterdir() if path.name.startswith(".")} == others
