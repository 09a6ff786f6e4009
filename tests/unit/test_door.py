"""The door of a server of graphs: it does not open to others without an allow-list."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid5

import pytest
from dubito.errors import UserFault
from dubito.resources.allowlist import process_allow_list
from dubito.settings import settings
from dubito.ui.door import app
from dubito.ui.guard import TokenCheck
from dubito.ui.settings_check import OF_GRAPHS, SettingsCheck
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket


@pytest.fixture(autouse=True)
def fresh_settings() -> Iterator[None]:
    def forget() -> None:
        settings.cache_clear()
        process_allow_list.cache_clear()

    forget()
    yield
    forget()


@pytest.mark.parametrize("url", ["http://0.0.0.0:2024", "http://192.168.1.5:2024", "http://[::]:2024", ""])
def test_a_server_for_others_needs_an_allow_list(url, monkeypatch):
    monkeypatch.setenv("LANGGRAPH_API_URL", url)
    with pytest.raises(UserFault, match="name the resources that they may use in DUBITO_ALLOW"), TestClient(app):
        pass
    for allowed in ("corpus=sample", "*"):
        monkeypatch.setenv("DUBITO_ALLOW", allowed)
        settings.cache_clear()
        with TestClient(app) as client:
            assert client.get("/nothing").status_code == 404


@pytest.mark.parametrize(
    ("allow", "said"),
    [
        ("corpora=/x llm", "DUBITO_ALLOW takes setting=value.*got 'corpora=/x'"),
        ("corpus=/nowhere", "There is no corpus at '/nowhere'"),
        ("corpus='/x", "close its quotation marks"),
    ],
)
def test_a_wrong_allow_list_is_told_at_the_start(allow, said, monkeypatch):
    monkeypatch.setenv("LANGGRAPH_API_URL", "http://127.0.0.1:2024")
    monkeypatch.setenv("DUBITO_ALLOW", allow)
    with pytest.raises(UserFault, match=said), TestClient(app):
        pass


@pytest.mark.parametrize("url", ["http://127.0.0.1:2024", "http://localhost:2024", "http://[::1]:2024"])
def test_a_server_for_oneself_needs_none(url, monkeypatch):
    monkeypatch.setenv("LANGGRAPH_API_URL", url)
    with TestClient(app, base_url=url) as client:
        assert client.get("/nothing").status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.com", "localhost.evil.com:2024", "evil.com@localhost:2024", "localhost:2025", ""]
)
def test_a_server_for_oneself_has_no_other_name(host, monkeypatch):
    monkeypatch.setenv("LANGGRAPH_API_URL", "http://127.0.0.1:2024")
    with TestClient(app, base_url="http://127.0.0.1:2024") as client:
        refused = client.get("/nothing", headers={"Host": host})
        assert refused.status_code == 403
        assert refused.json()["error"].startswith(f"This server is not '{host}': ask it by its numeric address")
    monkeypatch.setenv("DUBITO_ALLOW", "corpus=sample")
    settings.cache_clear()
    with TestClient(app, base_url="http://127.0.0.1:2024") as client:
        assert client.get("/nothing", headers={"Host": host}).status_code == 404


def test_the_token_opens_it(monkeypatch):
    monkeypatch.setenv("LANGGRAPH_API_URL", "http://127.0.0.1:2024")
    monkeypatch.setenv("DUBITO_TOKEN", "open sesame")
    with TestClient(app, base_url="http://127.0.0.1:2024") as client:
        assert client.get("/nothing").status_code == 401
        assert client.get("/nothing", headers={"Authorization": "Bearer open sesame"}).status_code == 404
        # health checks and a browser's preflight carry no token
        assert client.get("/ok").status_code == 404
        assert client.options("/nothing").status_code == 404


def test_a_page_is_opened_with_the_token_once_and_on_its_own_path_alone(monkeypatch):
    monkeypatch.setenv("LANGGRAPH_API_URL", "http://127.0.0.1:2024")
    monkeypatch.setenv("DUBITO_TOKEN", "sesame")
    for scheme, is_secure in (("http", False), ("https", True)):
        with TestClient(app, base_url=f"{scheme}://127.0.0.1:2024", follow_redirects=False) as client:
            assert client.get("/runs?token=sesame").status_code == 401
            opened = client.get("/?token=sesame")
            assert opened.status_code == 303
            assert ("Secure" in opened.headers["set-cookie"]) == is_secure
            assert client.get("/nothing").status_code == 404


def test_a_websocket_needs_the_token_too(monkeypatch):
    async def talk(socket: WebSocket) -> None:
        await socket.accept()
        await socket.close()

    monkeypatch.setenv("DUBITO_TOKEN", "sesame")
    guarded = Starlette(routes=[WebSocketRoute("/talk", talk)], middleware=[Middleware(TokenCheck)])
    client = TestClient(guarded)
    with pytest.raises(WebSocketDenialResponse), client.websocket_connect("/talk"):
        pass
    with client.websocket_connect("/talk", headers={"Authorization": "Bearer sesame"}):
        pass


def test_an_empty_token_is_none(monkeypatch):
    monkeypatch.setenv("DUBITO_TOKEN", "")
    assert settings().token is None


# --- the settings of a request ---

SAVED = str(UUID(int=8))
NO_KK = "df_rag has no setting 'kk' (did you mean k?)"


async def echo(request: Request) -> JSONResponse:
    return JSONResponse({"body": await request.json(), "path": request.url.path})


async def assistant(request: Request) -> JSONResponse:
    if request.headers.get("x-api-key") != "mine" or request.path_params["name"] != SAVED:
        return JSONResponse({"detail": "not found"}, status_code=404)
    return JSONResponse({"graph_id": "seakr", "context": {"estimator": "semantic_entropy"}})


@pytest.fixture
def server() -> TestClient:
    """A server behind the check: it tells what it received, and has one saved assistant."""
    routes = [
        Route("/assistants/{name}", assistant, methods=["GET"]),
        Route("/{path:path}", echo, methods=["POST", "PATCH"]),
    ]
    checked = Starlette(routes=routes, middleware=[Middleware(SettingsCheck)])
    return TestClient(checked, headers={"x-api-key": "mine"})


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/runs", "assistant_id"),
        ("/runs/wait", "assistant_id"),
        ("/runs/stream", "assistant_id"),
        ("/threads/7/runs", "assistant_id"),
        ("/threads/7/runs/wait", "assistant_id"),
        ("/threads/7/runs/stream", "assistant_id"),
        ("/runs/crons", "assistant_id"),
        ("/assistants", "graph_id"),
    ],
)
@pytest.mark.parametrize("graph", ["df_rag", "df_rag_chat", str(uuid5(OF_GRAPHS, "df_rag"))])
def test_a_wrong_setting_is_refused_in_a_sentence(server, path, name, graph):
    refused = server.post(path, json={name: graph, "context": {"kk": 3}, "input": {}})
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith(NO_KK)
    right = {name: graph, "context": {"k": 3}, "input": {"question": "Who?"}}
    assert server.post(path, json=right).json() == {"body": right, "path": path}, "the server reads the body too"


def test_a_resource_that_is_not_allowed_is_forbidden(server, monkeypatch):
    monkeypatch.setenv("DUBITO_ALLOW", "llm=vllm:http://127.0.0.1:9/v1#m")
    run: dict[str, Any] = {"assistant_id": "df_rag", "context": {"llm": "vllm:http://127.0.0.1:9/v1#m"}}
    assert server.post("/runs/wait", json=run).status_code == 200
    run["context"]["llm"] = "vllm:http://10.0.0.1/v1#m"
    refused = server.post("/runs/wait", json=run)
    assert refused.status_code == 403
    assert refused.json()["detail"].startswith("llm 'vllm:http://10.0.0.1/v1#m' is not allowed here")


def test_a_batch_is_refused_for_one_wrong_run(server):
    right: dict[str, Any] = {"assistant_id": "df_rag", "context": {"k": 3}}
    wrong = {"assistant_id": "dense_rag_reviewed", "context": {"k": 0}}
    assert server.post("/runs/batch", json=[right, right]).status_code == 200
    refused = server.post("/runs/batch", json=[right, wrong])
    assert (refused.status_code, refused.json()["detail"]) == (
        422,
        "k is '0' and must be a whole number from 1 to 1000.",
    )


def test_a_saved_assistants_run_is_checked_with_the_assistants_settings(server):
    run = {"assistant_id": SAVED, "context": {"judge": "llm"}}
    assert server.post("/runs/wait", json=run).status_code == 200, "judge has an effect with the saved estimator"
    saved = server.patch(f"/assistants/{SAVED}", json={"context": {"judge": "llm"}})
    assert (saved.status_code, "judge has no effect" in saved.json()["detail"]) == (422, True)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[" * 100_000,
        b'"context"',
        b'{"context": {"kk": 3}}',
        b'{"assistant_id": ["df_rag"], "context": {"kk": 3}}',
        b'{"assistant_id": "another graph", "context": {"kk": 3}}',
        b'{"assistant_id": "df_rag", "context": "kk"}',
        b'{"assistant_id": "%s", "context": {"kk": 3}}' % str(UUID(int=7)).encode(),
    ],
)
def test_what_is_not_ours_to_check_reaches_the_server(body):
    received = []

    async def receiver(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            received.append((await receive())["body"])
        await JSONResponse({}, status_code=404)(scope, receive, send)

    assert TestClient(SettingsCheck(receiver)).post("/runs/wait", content=body).status_code == 404
    assert received == [body]


def test_the_door_checks_settings(monkeypatch):
    monkeypatch.setenv("LANGGRAPH_API_URL", "http://127.0.0.1:2024")
    with TestClient(app, base_url="http://127.0.0.1:2024") as client:
        refused = client.post("/runs/wait", json={"assistant_id": "df_rag", "context": {"self": 1}})
    assert (refused.status_code, "df_rag has no setting 'self'" in refused.json()["detail"]) == (422, True)
