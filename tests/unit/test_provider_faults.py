import httpx
import openai
import pytest
from dubito.errors import ContextOverflow, ContractFault, DubitoError, ModelFault, UserFault
from dubito.models.provider_faults import provider_fault
from dubito.settings import settings
from langchain_core.exceptions import ContextOverflowError, ModelRateLimitError

REQUEST = httpx.Request("POST", "http://server/v1")


class Refused(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("said no")
        self.status_code = status


class APIConnectionError(Exception):
    """As anthropic's, which is not installed here."""


class Quota(Exception):
    status_code = 429
    code = "insufficient_quota"


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionRefusedError("refused"),
        Refused(429),
        Refused(503),
        Refused(408),
        APIConnectionError("gone"),
        httpx.ConnectError("no route"),
        httpx.ReadTimeout("slow"),
        httpx.HTTPStatusError("bad", request=REQUEST, response=httpx.Response(502, request=REQUEST)),
        openai.APITimeoutError(request=REQUEST),  # type: ignore[arg-type]
        openai.APIConnectionError(request=REQUEST),  # type: ignore[arg-type]
        ModelRateLimitError("wait"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_retry_may_mend_is_the_models_fault(error: Exception) -> None:
    fault = provider_fault("some-model", error)
    assert isinstance(fault, ModelFault)
    assert fault.endpoint == "some-model"
    assert fault.reason


@pytest.mark.parametrize(
    "error",
    [
        Refused(400),
        Refused(401),
        Refused(404),
        Quota("pay first"),
        ValueError("temperature must be positive"),
        httpx.UnsupportedProtocol("no http://"),
        NotImplementedError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_rest_is_the_users_and_names_class_and_message(error: Exception) -> None:
    fault = provider_fault("some-model", error)
    assert isinstance(fault, UserFault)
    assert str(fault).startswith(f"some-model: {type(error).__name__}: {error}")


def test_a_prompt_that_is_too_long_is_its_own_fault() -> None:
    assert isinstance(provider_fault("m", ContextOverflowError("8000 > 4096")), ContextOverflow)


def test_our_own_faults_pass_unchanged() -> None:
    fault: DubitoError = ContractFault("names none", "hm")
    assert provider_fault("m", fault) is fault


def test_reasons_are_one_short_line_with_their_cause_and_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUBITO_API_KEY", "sk-secret")
    settings.cache_clear()
    error = ConnectionError("could not\n  connect.")
    error.__cause__ = OSError("refused sk-secret")
    try:
        assert str(provider_fault("m", error)) == "m: could not connect (refused ***)."
        assert len(str(provider_fault("m", ValueError("x" * 9000)))) < 600
    finally:
        monkeypatch.delenv("DUBITO_API_KEY")
        settings.cache_clear()
