"""dubito's chat models and encoders as LangChain's."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ChatMessage, HumanMessage, SystemMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field, SkipValidation

from ..errors import UserFault
from .background import run_in_background
from .interfaces import ChatModel, Encoder, Message, Sampling


class DubitoChatModel(BaseChatModel):
    """A `ChatModel` as a LangChain chat model: text in, one text out, sync and async; no tools, no images.

    A streamed reply is a single chunk.
    """

    llm: SkipValidation[ChatModel] = Field(exclude=True)
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    stop: list[str] | None = None
    seed: int | None = None
    thinking: bool = False

    @property
    def model_name(self) -> str:
        """The name in LangChain's traces and token counts."""
        return self.llm.name

    @property
    def _llm_type(self) -> str:
        return "dubito"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        # also the key of LangChain's reply cache
        return {"model_name": self.model_name, **{setting: getattr(self, setting) for setting in _SETTINGS}}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:  # noqa: ANN401
        params = super()._get_ls_params(stop=stop if stop is not None else self.stop, **kwargs)
        params["ls_provider"] = "dubito"
        return params

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> ChatResult:
        return run_in_background(self._complete(messages, stop, kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> ChatResult:
        return await self._complete(messages, stop, kwargs)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> Iterator[ChatGenerationChunk]:
        yield _chunk(self._generate(messages, stop, run_manager, **kwargs))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield _chunk(await self._agenerate(messages, stop, run_manager, **kwargs))

    async def _complete(
        self, messages: list[BaseMessage], stop: list[str] | None, settings: dict[str, Any]
    ) -> ChatResult:
        if settings.get("n", 1) != 1:
            raise UserFault("DubitoChatModel gives one reply per call: use n=1, or batch.")
        if settings.get("tools") or settings.get("functions"):
            raise UserFault("DubitoChatModel calls no tools.")
        sampling = {setting: settings.get(setting, getattr(self, setting)) for setting in _SETTINGS}
        sampling["stop"] = tuple(stop if stop is not None else self.stop or ())
        reply = await self.llm.complete(_messages(messages), Sampling(**sampling))
        completion, tokens = reply.completions[0], reply.tokens
        message = AIMessage(
            completion.text,
            usage_metadata=UsageMetadata(
                input_tokens=tokens.prompt,
                output_tokens=tokens.completion,
                total_tokens=tokens.prompt + tokens.completion,
            ),
        )
        info = {"finish_reason": completion.finish_reason, "model_name": self.model_name}
        return ChatResult(generations=[ChatGeneration(message=message, generation_info=info)])


_SETTINGS = ("temperature", "top_p", "top_k", "max_tokens", "stop", "seed", "thinking")


class DubitoEmbeddings(Embeddings):
    """An `Encoder` as LangChain embeddings."""

    def __init__(self, encoder: Encoder) -> None:
        """encoder: any encoder, cached or not."""
        self.encoder = encoder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed passages."""
        return run_in_background(self.aembed_documents(texts))

    def embed_query(self, text: str) -> list[float]:
        """Embed a question."""
        return run_in_background(self.aembed_query(text))

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embed passages."""
        rows: list[list[float]] = (await self.encoder.embed(texts)).tolist()
        return rows

    async def aembed_query(self, text: str) -> list[float]:
        """Embed a question."""
        row: list[float] = (await self.encoder.embed([text], query=True))[0].tolist()
        return row


def _chunk(result: ChatResult) -> ChatGenerationChunk:
    (generation,) = result.generations
    message = cast("AIMessage", generation.message)
    whole = AIMessageChunk(content=message.content, usage_metadata=message.usage_metadata, chunk_position="last")
    return ChatGenerationChunk(message=whole, generation_info=generation.generation_info)


def _messages(turns: Sequence[BaseMessage]) -> list[Message]:
    """LangChain's messages as ours; neighbours of one role are joined: most chat templates need alternating roles."""
    messages: list[Message] = []
    for turn in turns:
        role, text = _role(turn), _text(turn)
        if messages and messages[-1]["role"] == role:
            messages[-1] = {"role": role, "content": f"{messages[-1]['content']}\n\n{text}"}
        else:
            messages.append({"role": role, "content": text})
    return messages


def _role(turn: BaseMessage) -> Any:  # noqa: ANN401 - one of Message's roles
    kinds: tuple[tuple[type[BaseMessage], str], ...] = (
        (SystemMessage, "system"),
        (HumanMessage, "user"),
        (AIMessage, "assistant"),
    )
    for kind, role in kinds:
        if isinstance(turn, kind):
            return role
    if isinstance(turn, ChatMessage) and turn.role in {"system", "user", "assistant"}:
        return turn.role
    raise UserFault(f"DubitoChatModel takes system, human and AI messages, not {type(turn).__name__}.")


def _text(turn: BaseMessage) -> str:
    blocks = [turn.content] if isinstance(turn.content, str) else turn.content
    for block in blocks:
        if isinstance(block, dict) and block.get("type") not in {"text", "reasoning", "thinking"}:
            raise UserFault(f"DubitoChatModel reads text only, not a block of type '{block.get('type')}'.")
    return str(turn.text)
