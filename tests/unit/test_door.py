"""The door of a server of graphs: it does not open to others without an allow-list."""

from collections.abc import Iterator

import pytest
from dubito.errors import UserFault
from dubito.settings import settings
from dubito.ui.door import app
from starlette.testclient import TestClient


@pytest.fixture(autouse=True)
def fresh_settings() -> Iterator[None]:
    settings.cache_clear()
    yield
    settings.cache_clear()


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
