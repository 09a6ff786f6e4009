"""Names of collections in vector databases, and the faults of databases that are not there."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator

import pytest
from dubito.cli import app
from dubito.errors import ModelFault, UserFault
from dubito.resources.allowlist import Forbidden, allow_list
from dubito.resources.opening import check_corpus
from dubito.retrieval.store_filters import without_negation
from dubito.retrieval.vector_databases import KINDS, Place, names_database
from dubito.retrieval.vector_store import open_collection
from dubito.settings import settings
from dubito.state.records import Chunk
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.state.where import Combined, Condition, condition_of, passes
from dubito.tests.scripted import ScriptedEncoder
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

NAMES = {
    "qdrant": "qdrant:http://127.0.0.1:9#c",
    "pgvector": "pgvector:postgresql://me@127.0.0.1:9/db#c",
    "milvus": "milvus:http://127.0.0.1:9#c",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rest", ["", "/x", "#c", "/x#"])
def test_a_name_that_names_no_collection_is_refused(kind: str, rest: str):
    with pytest.raises(UserFault, match=f"does not name a collection: write it as {kind}:"):
        Place.named(f"{kind}:{rest}")


@pytest.mark.parametrize("kind", ["pgvector", "milvus"])
@pytest.mark.parametrize("collection", ['a"; DROP TABLE x; --', "a b", "1a", "a" * 64, "é"])
def test_a_collection_with_an_odd_name_is_refused(kind: str, collection: str):
    with pytest.raises(UserFault, match="cannot be the name of a collection in"):
        check_corpus(f"{NAMES[kind].partition('#')[0]}#{collection}")


@pytest.mark.parametrize("name", ["weaviate:http://127.0.0.1#c", "qdrnt:http://127.0.0.1#c", "redis:/tmp/x#c"])
def test_a_database_that_dubito_does_not_know_is_said(name: str):
    with pytest.raises(UserFault, match=r"knows no vector database '\w+:'.*: use qdrant:, pgvector: or milvus:"):
        check_corpus(name)
    found = CliRunner().invoke(app, ["index", "sample", "--out", name])
    assert found.exit_code == 2
    assert "dubito knows no vector database" in found.stderr


@pytest.mark.parametrize("name", ["c:/notes/a#b", "no/such/folder#c", "notes", "a:b"])
def test_a_path_is_no_database(name: str):
    with pytest.raises(UserFault, match="There is no corpus at"):
        check_corpus(name)
    assert not names_database(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pgvector:host=localhost#c", "is not the URL of a database"),
        ("pgvector:postgresql://[#c", "is not the URL of a database"),
        ("pgvector:http://127.0.0.1#c", "is not the URL of a database"),
        ("milvus:notes#c", "neither a server nor a folder of Milvus, whose name ends in .db"),
        ("milvus:http://#c", "is not the URL of a server"),
    ],
)
def test_what_is_no_place_of_the_database_is_said(name: str, said: str):
    with pytest.raises(UserFault, match=said):
        Place.named(name).open()


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never answers."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(8)
        yield server.getsockname()[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("answers", [False, True], ids=["closed", "silent"])
async def test_a_server_that_is_not_there_is_a_model_fault(
    kind: str, answers: bool, silent: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DUBITO_TIMEOUT_S", "2")
    settings.cache_clear()
    name = NAMES[kind].replace(":9", f":{silent}") if answers else NAMES[kind]
    with pytest.raises(ModelFault, match=f"{KINDS[kind].title} does not answer") as caught:
        await open_collection(name, ScriptedEncoder())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_is_missing_is_said_with_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch):
    for module in ("langchain_qdrant", "langchain_postgres", "langchain_milvus"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserFault, match=rf"A collection in {KINDS[kind].title} needs its client: .*\[{kind}\]"):
        Place.named(NAMES[kind]).open()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_may_be_asked_only_for_the_collections_of_its_operator(kind: str):
    allowed = allow_list([f"corpus={NAMES[kind]}"], "it", "so")
    allowed.check(VanillaRagContext(corpus=NAMES[kind]))
    with pytest.raises(Forbidden):
        allowed.check(VanillaRagContext(corpus=NAMES[kind] + "d"))


@pytest.mark.parametrize("more", [["--force"], ["--add-to", "x"], ["--graph-neighbours", "3"]])
@pytest.mark.parametrize("kind", KINDS)
def test_options_of_an_index_folder_are_refused(kind: str, more: list[str]):
    found = CliRunner().invoke(app, ["index", "sample", "--out", NAMES[kind], *more])
    assert found.exit_code == 2
    assert "A vector database is filled with new documents by itself" in found.stderr


# --- a condition without negations ---

TESTS = st.one_of(
    st.builds(
        lambda compare, value: {compare: value}, st.sampled_from(["$eq", "$ne", "$gt", "$lte"]), st.integers(0, 3)
    ),
    st.builds(lambda compare, values: {compare: values}, st.sampled_from(["$in", "$nin"]), st.lists(st.integers(0, 3))),
    st.builds(lambda value: {"$exists": value}, st.booleans()),
)
FILTERS = st.recursive(
    st.dictionaries(st.sampled_from("ab"), TESTS, min_size=1),
    lambda inner: (
        st.builds(lambda part: {"$not": part}, inner)
        | st.builds(
            lambda how, parts: {how: parts}, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3)
        )
    ),
    max_leaves=6,
)


@given(
    where=FILTERS,
    metadata=st.dictionaries(st.sampled_from("ab"), st.integers(0, 3)),
)
def test_a_condition_without_negations_passes_the_same_chunks(where: dict[str, object], metadata: dict[str, int]):
    condition = condition_of(json.dumps(where))
    plain = without_negation(condition)
    assert "$not" not in hows(plain)
    chunk: Chunk = {"id": "i", "doc_id": "d", "title": "", "text": "", "metadata": {**metadata}}
    assert stored(plain, metadata) == passes(condition, chunk)


def hows(condition: Condition) -> set[str]:
    if isinstance(condition, Combined):
        return {condition.how}.union(*(hows(part) for part in condition.parts))
    return set()


def stored(condition: Condition, metadata: dict[str, int]) -> bool:
    """What a database finds, in which a comparison with a field that is missing is not true."""
    if isinstance(condition, Combined):
        return (any if condition.how == "$or" else all)(stored(part, metadata) for part in condition.parts)
    found, value = metadata.get(condition.field), condition.value
    if condition.operator == "$exists":
        return (found is None) != bool(value)
    compared = {"$eq": int.__eq__, "$ne": int.__ne__, "$gt": int.__gt__, "$gte": int.__ge__, "$lt": int.__lt__}
    return found is not None and compared.get(condition.operator, int.__le__)(found, value)
