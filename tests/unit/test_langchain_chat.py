import json
import logging
import threading
import time
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from dubito.errors import CapabilityMissing, ContextOverflow, ModelFault, UserFault
from dubito.models.interfaces import Message, Sampling, Tokens
from dubito.models.langchain_chat import LangChainChat
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import ContextOverflowError
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

ASKED: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "And now?"},
]


class Recording(BaseChatModel):
    """Answers with what `answer` makes of the call's number; keeps the messages and arguments of every call."""

    answer: Any
    calls: list[Any]
    lock: Any

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        with self.lock or threading.Lock():
            number = len(self.calls)
            self.calls.append(
                (
                    messages,
                    stop,
                    kwargs,
                    {f: getattr(self, f) for f in ("heat", "temperature", "num_predict", "seed") if hasattr(self, f)},
                )
            )
        answer = self.answer(number)
        if isinstance(answer, Exception):
            raise answer
        message = answer if isinstance(answer, AIMessage) else AIMessage(answer)
        return ChatResult(generations=[ChatGeneration(message=message)])

    @property
    def _llm_type(self) -> str:
        return "recording"


def recording(answer: Any, kind: type[Recording] = Recording, **fields: Any) -> Recording:
    return kind(answer=answer if callable(answer) else lambda _: answer, calls=[], lock=threading.Lock(), **fields)


class WithFields(Recording):
    """Like ChatOllama: settings are fields, and a call takes no such arguments."""

    temperature: float | None = None
    num_predict: int | None = None
    seed: int | None = None


class WithArguments(Recording):
    """Its call names the settings it takes."""

    def _generate(  # type: ignore[override]
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
    ) -> ChatResult:
        return super()._generate(messages, stop, run_manager, temperature=temperature, top_p=top_p)


async def test_the_chat_is_passed_on_in_langchains_messages() -> None:
    model = recording("Now.")
    reply = await LangChainChat(model).complete(ASKED, Sampling(stop=("\n",)))
    assert reply.text == "Now."
    assert reply.completions[0].finish_reason == "stop"
    messages, stop, _, _ = model.calls[0]
    assert [(m.type, m.content) for m in messages] == [
        ("system", "Be brief."),
        ("human", "Hello?"),
        ("ai", "Yes?"),
        ("human", "And now?"),
    ]
    assert stop == ["\n"]


async def test_generic_fake_model_with_usage() -> None:
    usage = UsageMetadata(input_tokens=5, output_tokens=2, total_tokens=7)
    messages: list[AIMessage | str] = [AIMessage("a", usage_metadata=usage), AIMessage("b", usage_metadata=usage), "c"]
    chat = LangChainChat(GenericFakeChatModel(messages=iter(messages)))
    assert (await chat.complete(ASKED, Sampling(n=2))).tokens == Tokens(10, 4)
    assert (await chat.complete(ASKED, Sampling())).tokens == Tokens(0, 0)


async def test_continuations_are_asked_for_at_once() -> None:
    together = threading.Barrier(3, timeout=10)
    model = recording(lambda _: str(together.wait() >= 0))
    assert len((await LangChainChat(model).complete(ASKED, Sampling(n=3))).completions) == 3


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "one "}, "two"], "one two"),
        ([{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "so"}], "so"),
        ("<think>hm</think>\nso", "so"),
    ],
)
async def test_only_text_is_the_answer(content: Any, text: str) -> None:
    assert (await LangChainChat(recording(AIMessage(content))).complete(ASKED, Sampling())).text == text


async def test_stop_strings_hold_even_for_a_model_that_ignores_them() -> None:
    metadata = {"finish_reason": "length"}
    chat = LangChainChat(recording(AIMessage("one\ntwo;three", response_metadata=metadata)))
    (completion,) = (await chat.complete(ASKED, Sampling(stop=(";", "\n")))).completions
    assert (completion.text, completion.finish_reason) == ("one", "stop")


@pytest.mark.parametrize(
    "metadata",
    [
        {"finish_reason": "length"},
        {"finish_reason": "MAX_TOKENS"},
        {"stop_reason": "max_tokens"},
        {"done_reason": "length"},
        {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
    ],
)
async def test_a_cut_reply_says_so_whatever_the_provider_calls_it(metadata: dict[str, Any]) -> None:
    chat = LangChainChat(recording(AIMessage("one", response_metadata=metadata)))
    assert (await chat.complete(ASKED, Sampling())).completions[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (AIMessage(""), ""),
        (AIMessage("", response_metadata={"finish_reason": "STOP"}), ""),
        (AIMessage("one", response_metadata={"finish_reason": "SAFETY"}), ""),
        (AIMessage("", response_metadata={"finish_reason": "SAFETY"}), "the server ended it with 'safety'"),
        (AIMessage("", response_metadata={"stop_reason": "max_tokens"}), "it was cut off at the length limit"),
        (AIMessage("<think>hm</think>"), "it holds only the model's thoughts"),
        (AIMessage([{"type": "reasoning", "reasoning": "hm"}]), "it holds only the model's thoughts"),
        (AIMessage("", additional_kwargs={"reasoning_content": "hm"}), "it holds only the model's thoughts"),
        (AIMessage("", additional_kwargs={"refusal": "I must not."}), "it is a refusal"),
        (AIMessage([{"type": "refusal", "refusal": "I must not."}]), "it is a refusal"),
    ],
)
async def test_only_a_model_that_said_nothing_gave_an_empty_reply(message: AIMessage, why: str) -> None:
    assert (await LangChainChat(recording(message)).complete(ASKED, Sampling())).completions[0].why_empty == why


# --- settings ---

WANTED = Sampling(n=2, temperature=0.5, max_tokens=9, seed=3)


async def test_settings_go_into_a_models_own_fields() -> None:
    model = recording("a", WithFields, temperature=0.9)
    await LangChainChat(model).complete(ASKED, WANTED)
    assert all(kwargs == {} for _, _, kwargs, _ in model.calls)
    assert sorted((f["temperature"], f["num_predict"], f["seed"]) for *_, f in model.calls) == [
        (0.5, 9, 3),
        (0.5, 9, 4),
    ]
    assert (model.temperature, model.num_predict) == (0.9, None)  # type: ignore[attr-defined]


async def test_settings_go_into_the_arguments_that_a_call_names(caplog: pytest.LogCaptureFixture) -> None:
    model = recording("a", WithArguments)
    chat = LangChainChat(model, "mine")
    for _ in range(2):
        await chat.complete(ASKED, Sampling(temperature=0.5, top_p=0.9, top_k=4, max_tokens=9))
    assert model.calls[0][2] == {"temperature": 0.5, "top_p": 0.9}
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "mine does not accept max_tokens from dubito; its own setting holds.",
        "mine does not accept top_k from dubito; its own setting holds.",
    ]


async def test_a_call_that_takes_anything_is_given_what_is_common(caplog: pytest.LogCaptureFixture) -> None:
    model = recording("a")
    await LangChainChat(model, "mine").complete(ASKED, WANTED)
    assert model.calls[0][2] == {"temperature": 0.5, "max_tokens": 9}
    assert "mine does not accept seed" in caplog.text


async def test_a_temperature_that_the_models_profile_excludes_is_not_sent() -> None:
    model = recording("a", WithFields)
    model.profile = {"temperature": False, "max_input_tokens": 1000}
    chat = LangChainChat(model)
    await chat.complete(ASKED, WANTED)
    assert model.calls[0][3]["temperature"] is None
    assert await chat.window() == 1000


async def test_langchains_reply_cache_does_not_make_samples_equal() -> None:
    model = recording(str)
    set_llm_cache(InMemoryCache())
    try:
        chat = LangChainChat(model)
        texts = [c.text for c in (await chat.complete(ASKED, Sampling(n=3, temperature=1))).completions]
        assert sorted(texts) == ["0", "1", "2"]
        greedy = [(await chat.complete(ASKED, Sampling())).text for _ in range(2)]
        assert greedy == ["3", "3"]
    finally:
        set_llm_cache(None)


def openai_chat(httpserver: HTTPServer, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="small", base_url=httpserver.url_for("/v1"), api_key="k", max_retries=0, **settings)


async def test_openai_chat_is_asked_with_every_setting(httpserver: HTTPServer) -> None:
    bodies: list[dict[str, Any]] = []

    def answer(request: Request) -> Response:
        bodies.append(request.get_json())
        reply = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "small",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5},
        }
        return Response(json.dumps(reply), content_type="application/json")

    httpserver.expect_request("/v1/chat/completions").respond_with_handler(answer)
    model = openai_chat(httpserver, temperature=0.1)
    chat = LangChainChat(model)
    assert chat.name == "langchain:ChatOpenAI#small"
    sampling = Sampling(n=2, temperature=0.5, top_p=0.9, max_tokens=9, seed=3, stop=("x",))
    reply = await chat.complete(ASKED, sampling)
    assert reply.tokens == Tokens(8, 2)
    assert reply.completions[0].finish_reason == "length"
    assert sorted(body["seed"] for body in bodies) == [3, 4]
    for body in bodies:
        assert body["temperature"] == 0.5
        assert body["top_p"] == 0.9
        assert body.get("max_tokens", body.get("max_completion_tokens")) == 9
        assert body["stop"] == ["x"]
    assert model.temperature == 0.1


@pytest.mark.parametrize(("status", "fault"), [(500, ModelFault), (401, UserFault)])
async def test_openai_chats_refusals_are_told_apart(
    httpserver: HTTPServer, status: int, fault: type[Exception]
) -> None:
    httpserver.expect_request("/v1/chat/completions").respond_with_json({"error": {"message": "no way"}}, status=status)
    with pytest.raises(fault, match="no way"):
        await LangChainChat(openai_chat(httpserver)).complete(ASKED, Sampling())


# --- choosing ---


async def test_the_named_option_has_the_whole_probability() -> None:
    usage = UsageMetadata(input_tokens=5, output_tokens=2, total_tokens=7)
    model = recording(lambda number: AIMessage(["Perhaps", "**No.**"][number], usage_metadata=usage))
    choice = await LangChainChat(model).choose(ASKED, ["yes", "no", "unknown"])
    assert choice.probabilities == {"yes": 0.0, "no": 1.0, "unknown": 0.0}
    assert choice.tokens == Tokens(10, 4), "both requests are counted"


# --- what it cannot do, and faults ---


async def test_what_it_cannot_do_names_what_can() -> None:
    chat = LangChainChat(recording("a"), "mine")
    assert chat.capabilities == frozenset()
    with pytest.raises(CapabilityMissing, match=r"mine cannot score.*vllm:, hf:, gguf: or embedded"):
        await chat.score(ASKED, ["a"])
    with pytest.raises(CapabilityMissing, match="log-probabilities"):
        await chat.complete(ASKED, Sampling(logprobs=True))


async def test_a_providers_error_becomes_ours_and_is_its_cause() -> None:
    with pytest.raises(ContextOverflow, match="mine") as raised:
        await LangChainChat(recording(ContextOverflowError("too long")), "mine").complete(ASKED, Sampling())
    assert type(raised.value.__cause__) is ContextOverflowError


async def test_window_and_count_without_a_profile() -> None:
    chat = LangChainChat(recording("a"))
    assert chat.name == "langchain:Recording"
    assert await chat.window() is None
    assert await chat.count(["", "a b c d", "1999", "\ud800"]) == [0, 4, 4, 3]


async def test_a_synchronous_model_does_not_block_the_loop() -> None:
    def answer(_: int) -> str:
        time.sleep(0.01)
        return "late"

    with blockbuster_ctx():
        assert (await LangChainChat(recording(answer)).complete(ASKED, Sampling())).text == "late"
