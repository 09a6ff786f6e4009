"""Filters over chunks: what passes, what each search then finds, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from dubito.errors import UserFault
from dubito.models.encoders import LangChainEncoder
from dubito.resources import resources as resources_module
from dubito.resources.resources import Resources
from dubito.retrieval.chunking import WordWindows
from dubito.retrieval.corpus import Corpus, Document
from dubito.retrieval.document_graph import cached_graph
from dubito.retrieval.first_stage import open_first_stage
from dubito.retrieval.index import Index
from dubito.retrieval.restricted import RestrictedGraph
from dubito.state.sunar import SunarContext
from dubito.state.vanilla_rag import VanillaRagContext
from dubito.state.where import condition_of, passes
from dubito.tests.json_lines import write_lines
from dubito.tests.scripted import ScriptedRetriever
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.embeddings import DeterministicFakeEmbedding

ENCODER = LangChainEncoder(DeterministicFakeEmbedding(size=16))


def chunk(title: str = "T", **metadata: Any) -> Any:
    return {"id": "c", "doc_id": "d", "title": title, "text": "", "metadata": metadata}


@pytest.mark.parametrize(
    ("where", "years"),
    [
        ({"year": 2020}, [2020]),
        ({"year": {"$gt": 2019}}, [2020, 2021]),
        ({"year": {"$gte": 2019, "$lt": 2021}}, [2019, 2020]),
        ({"year": {"$lte": 2018.5}}, [2018]),
        ({"year": {"$ne": 2020}}, [2018, 2019, 2021, None, "2020", True]),
        ({"year": {"$in": [2018, 2021]}}, [2018, 2021]),
        ({"year": {"$nin": [2018, 2021]}}, [2019, 2020, None, "2020", True]),
        ({"year": "2020"}, ["2020"]),
        ({"year": True}, [True]),
        ({"year": 1}, []),
        ({"year": {"$gte": "2019"}}, ["2020"]),
        ({"year": {"$exists": False}}, [None]),
        ({"year": {"$exists": True}}, [2018, 2019, 2020, 2021, "2020", True]),
        ({"$or": [{"year": 2018}, {"year": {"$gt": 2020}}]}, [2018, 2021]),
        ({"$and": [{"year": {"$gt": 2018}}, {"year": {"$lt": 2020}}]}, [2019]),
        ({"$not": {"year": {"$gte": 2019}}}, [2018, None, "2020", True]),
        ({"title": "T", "year": 2019}, [2019]),
        ({"title": "other", "year": 2019}, []),
        ({"doc_id": {"$in": ["d"]}, "year": 2018}, [2018]),
    ],
)
def test_what_passes(where, years):
    condition = condition_of(json.dumps(where))
    found = [2018, 2019, 2020, 2021, None, "2020", True]
    chunks: list[Any] = [chunk() if year is None else chunk(year=year) for year in found]
    assert [year for year, one in zip(found, chunks, strict=True) if passes(condition, one)] == years


VALUES = st.one_of(st.integers(-3, 3), st.sampled_from(["a", "b"]), st.booleans())
FILTERS = st.recursive(
    st.one_of(
        st.builds(lambda name, value: {name: value}, st.sampled_from("xy"), VALUES),
        st.builds(lambda name, value: {name: {"$gt": value}}, st.sampled_from("xy"), st.integers(-3, 3)),
        st.builds(lambda name, values: {name: {"$in": values}}, st.sampled_from("xy"), st.lists(VALUES, max_size=3)),
    ),
    lambda inner: st.one_of(
        st.builds(
            lambda how, parts: {how: parts}, st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3)
        ),
        st.builds(lambda part: {"$not": part}, inner),
    ),
    max_leaves=6,
)


def plainly(where: Any, fields: dict[str, Any]) -> bool:
    """The same, written straight down from the meaning of the words."""
    for name, given_value in where.items():
        if name == "$and":
            result = all(plainly(part, fields) for part in given_value)
        elif name == "$or":
            result = any(plainly(part, fields) for part in given_value)
        elif name == "$not":
            result = not plainly(given_value, fields)
        else:
            found = fields.get(name)
            if not isinstance(given_value, dict):
                result = type(found) is type(given_value) and found == given_value
            elif "$gt" in given_value:
                result = type(found) is int and found > given_value["$gt"]
            else:
                result = any(type(found) is type(value) and found == value for value in given_value["$in"])
        if not result:
            return False
    return True


@given(FILTERS, st.dictionaries(st.sampled_from("xy"), VALUES))
def test_a_filter_means_what_its_words_mean(where, fields):
    assert passes(condition_of(json.dumps(where)), chunk(**fields)) == plainly(where, fields)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("{", 'where is not JSON (expecting property name enclosed in double quotes, column 2): write it like {"year"'),
        ("[]", 'where has [] for an object such as {"year": {"$gte": 2020}}'),
        ({"year": {"$gte": [1]}}, "where's $gte of 'year' takes a number or a text"),
        ({"year": {"$in": 3}}, "where's $in of 'year' takes a list of values"),
        ({"year": {"$eq": None}}, "where's $eq of 'year' takes a number, a text or a truth value"),
        ({"year": {"$exists": 1}}, "where's $exists of 'year' takes true or false"),
        ({"year": {"$greater": 1}}, "where has no operator '$greater': use $eq, $ne, $gt,"),
        ({"year": {}}, "where asks nothing of 'year'"),
        ({"$nor": [{}]}, "where has no '$nor' around fields: use $and, $or or $not"),
        ({"$or": []}, "where's $or takes a list of conditions"),
        ({"$and": [{}]}, "where has {} for an object"),
        ("x" * 10_001, "where has 10,001 characters, and may have 10,000"),
        ('{"$not":' * 2000 + "{}" + "}" * 2000, "where has 18,002 characters"),
        ('{"$not":' * 500 + "{}" + "}" * 500, "where is not JSON"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(where, said):
    with pytest.raises(UserFault) as refused:
        VanillaRagContext(where=where)
    assert said in str(refused.value)


def test_a_context_takes_an_object_or_its_json():
    assert VanillaRagContext(where={"year": 2020}) == VanillaRagContext(where='{"year": 2020}')
    assert VanillaRagContext(where={}).where == ""


CORPUS = Corpus(
    tuple(
        Document(f"d{n}", f"Title {n}", f"river word{n} w{n % 3}" + " river" * (n % 5), {"n": n} if n % 2 else {})
        for n in range(40)
    )
)
ODD = condition_of('{"n": {"$gte": 10}}')
PASSING = [n for n in range(40) if n % 2 and n >= 10]


@pytest.fixture
async def index() -> Index:
    return await Index.build(CORPUS, WordWindows(50), ENCODER)


async def test_every_search_finds_the_best_of_what_passes_in_the_order_that_it_had(index, tmp_path):
    restricted = index.restricted(ODD)
    for name in ("dense", "bm25"):
        whole = await (await open_first_stage(name, index, tmp_path)).search("river w1", 40)
        stage = await open_first_stage(name, restricted, tmp_path)
        expected = [chunk["doc_id"] for chunk in whole if int(chunk["doc_id"][1:]) in PASSING]
        for n in (1, 5, 40):
            assert [chunk["doc_id"] for chunk in await stage.search("river w1", n)] == expected[:n]
    hybrid = await (await open_first_stage("hybrid", restricted, tmp_path)).search("river w1", 40)
    assert sorted(int(chunk["doc_id"][1:]) for chunk in hybrid) == PASSING


async def test_a_pool_has_what_passes_with_its_vectors(index):
    pool = await index.restricted(ODD).pool("river", None)
    assert [pool.chunk(row)["doc_id"] for row in range(len(pool))] == [f"d{n}" for n in PASSING]
    np.testing.assert_array_equal(pool.vectors, index.vectors[PASSING])
    assert len(await index.pool("river", None)) == 40, "the whole index is as it was"


async def test_a_graph_has_no_neighbours_that_do_not_pass(index, tmp_path):
    graph = await cached_graph(index, 39, tmp_path, lambda done, total: None, encoder=ENCODER)
    restricted = RestrictedGraph(graph, ODD)
    whole = [other for other, _ in graph.neighbours("d0#0")]
    assert [other for other, _ in restricted.neighbours("d0#0")] == [
        other for other in whole if int(other[1:].partition("#")[0]) in PASSING
    ]


async def test_a_filter_that_nothing_passes_names_the_fields(index):
    with pytest.raises(UserFault, match=r"No chunk of the corpus passes the filter .* \(the first chunks have n\)"):
        index.restricted(condition_of('{"year": 1}'))


@pytest.fixture
def corpus(tmp_path) -> str:
    records = [{"title": f"T{n}", "text": f"river {n}", "year": 2000 + n} for n in range(8)]
    write_lines(tmp_path / "corpus.jsonl", records)
    return str(tmp_path / "corpus.jsonl")


@pytest.mark.parametrize("first_stage", ["dense", "bm25"])
async def test_a_graphs_search_keeps_to_the_filter(corpus, first_stage):
    opened = Resources(encoder=ENCODER)
    context = VanillaRagContext(corpus=corpus, where={"year": {"$gte": 2005}}, first_stage=first_stage)
    found = await (await opened.first_stage(context)).search("river", 8)
    assert sorted(chunk["title"] for chunk in found) == ["T5", "T6", "T7"]
    whole = await (await opened.first_stage(VanillaRagContext(corpus=corpus, first_stage=first_stage))).search(
        "river", 8
    )
    assert len(whole) == 8
    assert await opened.chunks_sha256(context) == await opened.chunks_sha256(VanillaRagContext(corpus=corpus))


async def test_sunars_graph_keeps_to_the_filter_too(corpus):
    opened = Resources(encoder=ENCODER)
    context = SunarContext(corpus=corpus, where='{"year": {"$gte": 2005}}', graph_neighbours=7, budget=8)
    graph = await opened.document_graph(context)
    assert sorted(graph.chunk(other)["title"] for other, _ in graph.neighbours("T5#0")) == ["T6", "T7"]


async def test_only_the_last_filters_are_kept(corpus, monkeypatch):
    monkeypatch.setattr(resources_module, "MOST_FILTERS", 2)
    opened = Resources(encoder=ENCODER)
    contexts = [VanillaRagContext(corpus=corpus, where=f'{{"year": {2000 + n}}}') for n in range(3)]
    first, second, third = [await opened.retriever(context) for context in contexts]
    assert await opened.retriever(contexts[2]) is third
    assert await opened.retriever(contexts[1]) is second
    assert await opened.retriever(contexts[0]) is not first


async def test_a_live_retriever_filters_by_itself():
    opened = Resources(retriever=ScriptedRetriever([1.0], [[1.0]], ["a"]))
    with pytest.raises(UserFault, match="give your own retriever a filter of its own"):
        await opened.retriever(VanillaRagContext(where='{"year": 1}'))
