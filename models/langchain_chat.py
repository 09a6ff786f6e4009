"""Any LangChain chat model as a `ChatModel`."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from ..errors import CapabilityMissing
from .asking import ask_and_parse
from .interfaces import Capability, Choice, Completion, Introspection, Message, Reply, Sampling, Scores, Tokens
from .provider_faults import provider_fault
from .thinking import strip_thinking

logger = logging.getLogger(__name__)

_FIELDS: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temperature",),
    "max_tokens": ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "num_predict"),
    "top_p": ("top_p",),
    "top_k": ("top_k",),
    "seed": ("seed",),
}
"""For each setting the names of the fields that LangChain's chat models keep it in."""

_COMMON = frozenset({"temperature", "max_tokens"})
"""Settings that are also passed with a call to a model without such a field, if its `**kwargs` take what comes."""

_CUT = frozenset({"length", "max_tokens", "max_output_tokens", "model_length"})
"""What providers call a reply that was cut by the limit."""

_ROLES: Mapping[str, type[BaseMessage]] = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}


class LangChainChat:
    """A LangChain chat model: it completes, and chooses by naming an option; it cannot score.

    Of a `Sampling`, `stop` is LangChain's own; temperature, max_tokens, top_p, top_k and seed reach the model where it
    has a field for them or names them among its call's arguments (the first two also where a call takes anything). What
    does not reach it is warned of once, and the model's own setting stands. LangChain has no common switch for
    `thinking`; thoughts are left out of the text.
    """

    def __init__(self, model: BaseChatModel, name: str | None = None) -> None:
        """name: what it is called in messages and traces; by default its class and model."""
        self._model = model
        self._name = name or _default_name(model)
        self._warned: set[str] = set()

    @property
    def name(self) -> str:
        """See `ChatModel.name`."""
        return self._name

    @property
    def capabilities(self) -> frozenset[Capability]:
        """None: LangChain has no common interface to log-probabilities, and seeds bind nobody."""
        return frozenset()

    async def complete(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """See `ChatModel.complete`; n continuations are n calls at once, the i-th with the i-th seed from the given."""
        if sampling.logprobs:
            self._cannot("give log-probabilities")
        turns = [_ROLES[message["role"]](message["content"]) for message in messages]
        seeds = [None if sampling.seed is None else sampling.seed + i for i in range(sampling.n)]
        calls = [asyncio.create_task(self._call(turns, sampling, seed)) for seed in seeds]
        try:
            parts = await asyncio.gather(*calls)
        finally:
            # after a fault the others' answers would be thrown away
            for call in calls:
                call.cancel()
        return Reply(tuple(completion for completion, _ in parts), _sum(tokens for _, tokens in parts))

    async def choose(self, messages: Sequence[Message], options: Sequence[str]) -> Choice:
        """See `ChatModel.choose`: the option that the reply names has probability 1."""
        used: list[Tokens] = []

        async def complete(asked: Sequence[Message], sampling: Sampling) -> Reply:
            reply = await self.complete(asked, sampling)
            used.append(reply.tokens)
            return reply

        chosen = await ask_and_parse(complete, messages, options)
        return Choice({option: float(option == chosen) for option in options}, _sum(used))

    async def score(self, messages: Sequence[Message], continuations: Sequence[str]) -> Scores:
        """A LangChain chat model cannot score a given reply."""
        self._cannot("score given replies")

    async def introspect(
        self, messages: Sequence[Message], sampling: Sampling, layer: int | None = None
    ) -> Introspection:
        """A LangChain chat model does not show its hidden states."""
        self._cannot("show its hidden states")

    async def window(self) -> int | None:
        """The longest prompt in the model's LangChain profile, where it has one."""
        limit = _profile(self._model).get("max_input_tokens")
        return limit if isinstance(limit, int) else None

    async def count(self, texts: Sequence[str]) -> list[int]:
        """See `ChatModel.count`: an estimate, one token a digit and one for two bytes of anything else.

        LangChain's own counters read another model's tokenizer, fetched when first used.
        """
        return [_estimate(text) for text in texts]

    async def _call(self, turns: list[BaseMessage], sampling: Sampling, seed: int | None) -> tuple[Completion, Tokens]:
        model, arguments = self._configured(sampling, seed)
        try:
            message = await model.ainvoke(turns, stop=list(sampling.stop) or None, **arguments)
        except Exception as error:
            raise provider_fault(self._name, error) from error
        # `text` joins the text blocks and leaves out reasoning and every other kind
        text = strip_thinking(str(message.text))
        whole, text = text, _until(text, sampling.stop)
        cut = _was_cut(message.response_metadata) and text == whole
        return Completion(text, "length" if cut else "stop"), _tokens(message)

    def _configured(self, sampling: Sampling, seed: int | None) -> tuple[BaseChatModel, dict[str, Any]]:
        wanted: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature}
        if sampling.top_p != 1.0:
            wanted["top_p"] = sampling.top_p
        if sampling.top_k:
            wanted["top_k"] = sampling.top_k
        if seed is not None:
            wanted["seed"] = seed
        if _profile(self._model).get("temperature") is False:
            # such models refuse the parameter
            del wanted["temperature"]
            self._warn_of("temperature")
        fields = type(self._model).model_fields
        named, anything = _call_arguments(self._model)
        update: dict[str, Any] = {}
        arguments: dict[str, Any] = {}
        for setting, value in wanted.items():
            if field := next((field for field in _FIELDS[setting] if field in fields), None):
                update[field] = value
            elif setting in named or (anything and setting in _COMMON):
                arguments[setting] = value
            else:
                self._warn_of(setting)
        # LangChain's reply cache would give every sample of a prompt the same text
        if sampling.temperature > 0 and (self._model.cache or (self._model.cache is None and get_llm_cache())):
            update["cache"] = False
        return (self._model.model_copy(update=update) if update else self._model), arguments

    def _warn_of(self, setting: str) -> None:
        if setting not in self._warned:
            self._warned.add(setting)
            logger.warning("%s takes no %s from dubito; its own setting stands.", self._name, setting)

    def _cannot(self, what: str) -> NoReturn:
        raise CapabilityMissing(
            f"{self._name} cannot {what}, as no LangChain chat model can; use a vllm:, hf:, gguf: or embedded model."
        )


def _default_name(model: BaseChatModel) -> str:
    called = next((v for v in (getattr(model, a, None) for a in ("model_name", "model")) if isinstance(v, str)), None)
    kind = f"langchain:{type(model).__name__}"
    return f"{kind}#{called}" if called else kind


def _profile(model: BaseChatModel) -> Mapping[str, Any]:
    return getattr(model, "profile", None) or {}


def _call_arguments(model: BaseChatModel) -> tuple[set[str], bool]:
    """The named arguments of a model's generating method, and whether it takes any others."""
    kind = type(model)
    method = kind._generate if kind._agenerate is BaseChatModel._agenerate else kind._agenerate
    parameters = inspect.signature(method).parameters
    return set(parameters), any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _until(text: str, stops: Iterable[str]) -> str:
    """The text before the first stop string: a model may ignore them, or leave the one it met in place."""
    for stop in stops:
        text = text.partition(stop)[0] if stop else text
    return text


def _was_cut(metadata: Mapping[str, Any]) -> bool:
    incomplete = metadata.get("incomplete_details")
    reasons = [metadata.get(key) for key in ("finish_reason", "stop_reason", "done_reason")]
    reasons.append(incomplete.get("reason") if isinstance(incomplete, dict) else None)
    return any(str(reason).lower() in _CUT for reason in reasons)


def _tokens(message: BaseMessage) -> Tokens:
    usage = getattr(message, "usage_metadata", None) or {}
    return Tokens(usage.get("input_tokens") or 0, usage.get("output_tokens") or 0)


def _sum(parts: Iterable[Tokens]) -> Tokens:
    parts = list(parts)
    return Tokens(sum(p.prompt for p in parts), sum(p.completion for p in parts))


def _estimate(text: str) -> int:
    digits = sum(c.isdigit() for c in text)
    return digits + math.ceil((len(text.encode("utf-8", "surrogatepass")) - digits) / 2)
