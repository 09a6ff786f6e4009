"""Which key goes to which server, and what a server's URL may hold."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dubito.config import config
from dubito.errors import UserFault
from dubito.server_url import bind_general_keys, checked_url, key_for, without_keys
from dubito.settings import settings


@pytest.mark.parametrize("is_named", [False, True])
def test_only_a_configuration_file_that_is_named_says_where_the_general_key_goes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DUBITO_ALLOW")
    file = tmp_path / "dubito.toml"
    file.write_text(
        'llm = "openai:https://model.example/v1#m"\n[process]\nallow = "llm=openai:https://allowed.example/v1#m"\n'
    )
    if is_named:
        monkeypatch.setenv("DUBITO_CONFIG", str(file))
    config.cache_clear()
    settings.cache_clear()
    keys = [key_for(f"https://{host}.example/v1", settings().api_key) for host in ("model", "allowed", "other")]
    assert keys == (["dk-1", "dk-1", ""] if is_named else ["", "", ""])
    config.cache_clear()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DUBITO_API_KEY", "dk-1")
    monkeypatch.setenv("OPENAI_API_KEY", "ok-1")
    monkeypatch.setenv("MISTRAL_API_KEY", "mk-1")
    monkeypatch.setenv("DUBITO_ALLOW", "llm=vllm:http://127.0.0.1:8000/v1#m corpus=qdrant:https://q.example#c")
    monkeypatch.setenv("DUBITO_KEYS", "api.mistral.ai=$MISTRAL_API_KEY gate.example:8443 http://10.0.0.7=plain")
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://api.openai.com/v1", "ok-1"),
        ("https://API.OpenAI.com:443/v1", "ok-1"),
        ("https://api.openai.com./v1", "ok-1"),
        ("http://api.openai.com/v1", ""),
        ("https://api.openai.com:8443/v1", ""),
        ("https://api.openai.com.evil.example/v1", ""),
        ("http://127.0.0.1:8000/v1", "dk-1"),
        ("http://127.0.0.1:8001/v1", ""),
        ("https://127.0.0.1:8000/v1", ""),
        ("https://q.example", "dk-1"),
        ("https://api.mistral.ai/v1", "mk-1"),
        ("http://api.mistral.ai/v1", ""),
        ("https://gate.example:8443/v1", "dk-1"),
        ("https://gate.example/v1", ""),
        ("http://10.0.0.7/v1", "plain"),
        ("https://evil.example/v1", ""),
    ],
)
def test_a_key_goes_to_its_hosts_alone(url, key):
    assert key_for(url, settings().api_key) == key


def test_what_the_command_line_names_gets_the_general_key(monkeypatch):
    bind_general_keys(["ask", "--llm", "openai:https://host.example/v1#m", "cot:llm=vllm:http://[::1]:8000/v1#a&b=c"])
    assert key_for("https://host.example/v1", settings().api_key) == "dk-1"
    assert key_for("http://[::1]:8000/v1", settings().api_key) == "dk-1"
    assert key_for("https://host.example:444/v1", settings().api_key) == ""
    assert key_for("https://api.mistral.ai/v1", settings().api_key) == "mk-1"


def test_all_keys_are_blotted_out():
    assert without_keys("dk-1 ok-1 mk-1 plain other") == "*** *** *** *** other"


@pytest.mark.parametrize("is_set", [False, True])
def test_a_host_whose_own_key_is_not_set_gets_no_other_key(monkeypatch: pytest.MonkeyPatch, is_set: bool) -> None:
    monkeypatch.delenv("MISTRAL_API_KEY")
    if is_set:
        monkeypatch.setenv("MISTRAL_API_KEY", " ")
    with pytest.raises(
        UserFault, match=r"for api\.mistral\.ai .* variable MISTRAL_API_KEY, which is not set"
    ) as caught:
        key_for("https://api.mistral.ai/v1", settings().api_key)
    assert "dk-1" not in str(caught.value)


def test_what_may_be_a_key_is_not_quoted_as_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_KEYS", "host=$ecret")
    settings.cache_clear()
    with pytest.raises(UserFault, match="is not set") as caught:
        key_for("https://host", settings().api_key)
    assert "ecret" not in str(caught.value)


@pytest.mark.parametrize(
    "keys", ["host=", "'host= '", "'host=a", "ht tp://x=a", "https://user@host=a", "host=\xe9", "'host=a\nb'"]
)
def test_keys_that_cannot_be_read_are_named(keys, monkeypatch):
    monkeypatch.setenv("DUBITO_KEYS", keys)
    settings.cache_clear()
    with pytest.raises(UserFault) as caught:
        key_for("https://host", None)
    assert "DUBITO_KEYS" in str(caught.value) or "https://host" in str(caught.value)
    assert "a\nb" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://user:secret@host/v1", "https://secret@host", "https://host/v1?key=secret", "http://@host"],
)  # fmt: skip
def test_a_url_with_a_secret_is_refused_and_not_quoted(url):
    with pytest.raises(UserFault, match="put the key into DUBITO_KEYS") as caught:
        checked_url(url, "http://127.0.0.1:8000/v1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "host:80", "ftp://host", "http://", "http://h:0", "http://h:x", "http://a b", "http://h\x00"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(UserFault, match=r"write it as in http://127\.0\.0\.1:8000/v1"):
        checked_url(url, "http://127.0.0.1:8000/v1")


def test_a_right_url_is_trimmed():
    assert checked_url(" http://host/v1/ ", "x") == "http://host/v1"
