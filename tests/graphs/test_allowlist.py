"""What DUBITO_ALLOW names is all that questions may name: every graph, before any model hears of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dubito.errors import UserFault
from dubito.graphs import chat as chats
from dubito.graphs import dense_rag, reviewed, vanilla_rag
from dubito.graphs.registry import graph_named, graph_names
from dubito.resources.allowlist import Forbidden
from dubito.settings import settings
from dubito.tests.scripted import QUESTION, chat, resources

INPUT: Any = {"question": QUESTION}
SERVER = "vllm:http://127.0.0.1:9/v1#m"


async def refused(graph: Any, context: dict[str, Any], given: Any = INPUT) -> str:
    with pytest.raises(Forbidden) as fault:
        await graph.ainvoke(given, context=context)
    return str(fault.value)


@pytest.mark.parametrize("name", graph_names())
async def test_no_graph_asks_a_server_that_is_not_named(name: str, allow: Any) -> None:
    allow("")
    llm = chat()
    graph = graph_named(name, resources(llm))
    given = {**INPUT, "answers": ["the Lune"]} if name == "seper" else INPUT
    said = await refused(graph, {"llm": SERVER}, given)
    assert said == (
        f"llm '{SERVER}' is not allowed here: use embedded, or have llm={SERVER} added to DUBITO_ALLOW where the "
        "server is started."
    )
    assert llm.calls == []


@pytest.mark.parametrize(
    "context",
    [
        {"corpus": "/etc/passwd"},
        {"encoder": "st:/etc"},
        {"judge": "nli:/etc"},
        {"preset": "paper"},
        {"judge": "similarity:0.5"},
    ],
)
async def test_what_names_a_file_or_a_server_has_to_be_named(context: dict[str, Any], allow: Any) -> None:
    allow(f"llm={SERVER}")
    await refused(dense_rag.build(resources(chat())).compile(), context)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "my notes"
    folder.mkdir()
    return folder


async def test_what_is_named_may_be_asked_for_beside_what_dubito_brings(allow: Any, notes: Path) -> None:
    allow(f"llm={SERVER} 'corpus={notes}'")
    graph: Any = vanilla_rag.build(resources(chat())).compile()
    for context in ({"llm": SERVER}, {"corpus": str(notes)}, {}, {"llm": "embedded", "chunker": "words:7"}):
        assert (await graph.ainvoke(INPUT, context=context))["answer"] == "the Lune"
    for other in (f"{SERVER}2", SERVER.removesuffix("#m"), f"{notes}/..", f"{notes}/"):
        await refused(graph, {"llm" if "vllm" in other else "corpus": other})


async def test_everything_may_be_named_where_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUBITO_ALLOW", raising=False)
    settings.cache_clear()
    graph: Any = vanilla_rag.build(resources(chat())).compile()
    assert (await graph.ainvoke(INPUT, context={"llm": SERVER, "corpus": "/nowhere"}))["answer"] == "the Lune"


async def test_the_other_forms_of_a_graph_are_no_way_around(allow: Any) -> None:
    allow("")
    said = {"messages": [{"role": "user", "content": QUESTION}]}
    llm = chat()
    await refused(chats.build("df_rag", resources(llm)).compile(), {"llm": SERVER}, said)
    await refused(reviewed.build("dense_rag", resources(llm)).compile(), {"llm": SERVER})
    assert llm.calls == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("llm", "DUBITO_ALLOW takes setting=value"),
        ("k=7", "DUBITO_ALLOW takes setting=value"),
        ("'llm=x", "DUBITO_ALLOW cannot be read (No closing quotation): close its quotation marks."),
        ("corpus=/nowhere/at/all", "There is no corpus at '/nowhere/at/all'"),
        ("llm=gpt", "There is no chat model named 'gpt'"),
    ],
)
async def test_a_list_that_cannot_be_read_allows_nothing(value: str, said: str, allow: Any) -> None:
    allow(value)
    llm = chat()
    graph: Any = vanilla_rag.build(resources(llm)).compile()
    for _ in range(2):
        with pytest.raises(UserFault) as fault:
            await graph.ainvoke(INPUT)
        assert said in str(fault.value)
    assert llm.calls == []
