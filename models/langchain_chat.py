"""Any LangChain chat model as a `ChatModel`."""

import inspect
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langgraph.constants import TAG_NOSTREAM

from ..concurrency import gather_or_cancel
from ..errors import CapabilityMissing
from .answer_stream import text_listener
from .choose_by_prompt import ask_and_parse
from .generation import estimated_tokens
from .interfaces import (
    MIDDLE_LAYER,
    Capability,
    Choice,
    Completion,
    Introspection,
    Message,
    Reply,
    Sampling,
    Scores,
    StatePlace,
    Tokens,
)
from .provider_faults import langchain_name, provider_fault
from .thinking import CUT, first_stop, strip_thinking, why_empty

logger = logging.getLogger(__name__)

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict"),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
    "seed": ("seed",),
}
"""The names of each setting's field in LangChain's chat models."""

_COMMON = frozenset({"temperature", "max_tokens"})
"""Settings that are passed with the call to a model without such a field, if the call takes any keyword."""

_ROLES: Mapping[str, type[BaseMessage]] = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}


class LangChainChat:
    """A LangChain chat model: it completes, and chooses by naming an option; it cannot score.

    `stop` is passed to LangChain. temperature, max_tokens, top_p, top_k and seed are passed if the model has a field or
    a call argument for them (the first two also if the call takes any keyword). For every other setting one warning is
    given, and the model's own setting holds. LangChain has no common switch for `thinking`; thoughts are removed.
    """

    def __init__(self, model: BaseChatModel, name: str | None = None) -> None:
        """name: for messages and traces; by default the class and the model."""
        self._model = model
        self.name = name or langchain_name(model)
        self._warned: set[str] = set()

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Empty: LangChain has no common interface to log-probabilities, and no provider must honour a seed."""
        return frozenset()

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`; n continuations are n concurrent calls, call i with seed + i."""
        if sampling.logprobs:
            self._cannot("give log-probabilities")
        turns = [_ROLES[message["role"]](message["content"]) for message in messages]
        seeds = [None if sampling.seed is None else sampling.seed + i for i in range(sampling.n)]
        parts = await gather_or_cancel(self._call(turns, sampling, seed) for seed in seeds)
        return Reply(tuple(completion for completion, _ in parts), sum((tokens for _, tokens in parts), Tokens()))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`; the option that the reply names has probability 1."""
        return await ask_and_parse(self.complete, messages, options)

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """A LangChain chat model cannot score a given reply."""
        self._cannot("score given replies")

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, place: StatePlace = MIDDLE_LAYER
    ) -> Introspection:
        """A LangChain chat model does not show its hidden states."""
        self._cannot("show its hidden states")

    async def window(self) -> int | None:
        """The longest prompt according to the model's LangChain profile; None without a profile."""
        limit = _profile(self._model).get("max_input_tokens")
        return limit if isinstance(limit, int) else None

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`; an upper estimate (see `estimated_tokens`).

        LangChain's own counters use another model's tokenizer, downloaded at first use.
        """
        return [estimated_tokens(text) for text in texts]

    async def _call(self, turns: list[BaseMessage], sampling: Sampling, seed: int | None) -> tuple[Completion, Tokens]:
        model, arguments = self._configured(sampling, seed)
        try:
            message = await self._message(model, turns, sampling, arguments)
        except Exception as error:
            raise provider_fault(self.name, error) from error
        # `text` joins the text blocks only, not reasoning blocks
        whole = str(message.text)
        text = strip_thinking(whole)
        # a model may ignore stop strings, or include them
        stop = first_stop(text, sampling.stop)
        ended = "stop" if stop is not None else _finish_reason(message.response_metadata)
        thinks = whole != text or _thinks(message)
        why = "" if text.strip() else why_empty(ended, has_thoughts=thinks, refusal=_refusal(message))
        return Completion(text[:stop], "length" if ended in CUT else "stop", why_empty=why), _tokens(message)

    async def _message(
        self, model: BaseChatModel, turns: list[BaseMessage], sampling: Sampling, arguments: Mapping[str, Any]
    ) -> BaseMessage:
        # LangGraph would stream every call of a LangChain model as the answer
        silent: RunnableConfig = {"tags": [TAG_NOSTREAM]}
        stop, listener = list(sampling.stop) or None, text_listener(sampling)
        if listener is None:
            return await model.ainvoke(turns, silent, stop=stop, **arguments)
        whole: AIMessageChunk | None = None
        try:
            async for chunk in model.astream(turns, silent, stop=stop, **arguments):
                whole = chunk if whole is None else whole + chunk
                listener(str(whole.text))
        except Exception as error:
            # some servers refuse to stream
            if whole is not None or "stream" not in str(error):
                raise
        return whole or await model.ainvoke(turns, silent, stop=stop, **arguments)

    def _configured(self, sampling: Sampling, seed: int | None) -> tuple[BaseChatModel, dict[str, Any]]:
        settings: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
        if sampling.top_p != 1.0:
            settings["top_p"] = sampling.top_p
        if sampling.top_k:
            settings["top_k"] = sampling.top_k
        if seed is not None:
            settings["seed"] = seed
        if _profile(self._model).get("temperature") is False:
            # such models refuse the parameter
            del settings["temperature"]
            self._warn_of("temperature")
        fields = type(self._model).model_fields
        named, anything = _call_arguments(self._model)
        update: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        for setting, value in settings.items():
            if field := next((field for field in _FIELDS[setting] if field in fields), None):
                update[field] = value
            elif setting in named or (anything and setting in _COMMON):
                arguments[setting] = value
            else:
                self._warn_of(setting)
        # without it some models stream no usage
        if text_listener(sampling) is not None and getattr(self._model, "stream_usage", True) is None:
            update["stream_usage"] = True
        # LangChain's reply cache would return the same text for every sample
        if sampling.temperature > 0 and (self._model.cache or (self._model.cache is None and get_llm_cache())):
            update["cache"] = False
        return (self._model.model_copy(update=update) if update else self._model), arguments

    def _warn_of(self, setting: str) -> None:
        if setting not in self._warned:
            self._warned.add(setting)
            logger.warning("%s does not accept %s from dubito; its own setting holds.", self.name, setting)

    def _cannot(self, verb: str) -> NoReturn:
        raise CapabilityMissing(
            f"{self.name} cannot {verb}, as no LangChain chat model can; use a vllm:, hf:, gguf: or embedded model."
        )


def _profile(model: BaseChatModel) -> Mapping[str, Any]:
    return getattr(model, "profile", None) or {}


def _call_arguments(model: BaseChatModel) -> tuple[set[str], bool]:
    """The named arguments of a model's generating method, and whether it takes any others."""
    kind = type(model)
    method = kind._generate if kind._agenerate is BaseChatModel._agenerate else kind._agenerate
    parameters = inspect.signature(method).parameters
    return set(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _finish_reason(metadata: Mapping[str, Any]) -> str:
    """Why the reply ended, in lower case; empty if the provider does not say."""
    incomplete = metadata.get("incomplete_details")
    reasons = [incomplete.get("reason") if isinstance(incomplete, dict) else None]
    reasons += [metadata.get(key) for key in ("finish_reason", "stop_reason", "done_reason")]
    return next((str(reason).lower() for reason in reasons if reason), "")


def _thinks(message: BaseMessage) -> bool:
    kinds = {block["type"] for block in message.content_blocks}
    return "reasoning" in kinds or bool(message.additional_kwargs.get("reasoning_content"))


def _refusal(message: BaseMessage) -> object:
    blocks = message.content if isinstance(message.content, list) else []
    refused = any(isinstance(block, dict) and block.get("type") == "refusal" for block in blocks)
    return refused or message.additional_kwargs.get("refusal")


def _tokens(message: BaseMessage) -> Tokens:
    usage = getattr(message, "usage_metadata", None) or {}
    return Tokens(usage.get("input_tokens") or 0, usage.get("output_tokens") or 0)
