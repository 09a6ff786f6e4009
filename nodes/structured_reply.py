"""Ask a model for a reply that a parser can read: at most twice, the second time with the error named."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from ..errors import ContractFault
from ..models.interfaces import ChatModel, Completion, Message, Sampling
from ..prompts import defuse
from ..state.mixins import ThinkingContext

T = TypeVar("T")

NO_ANSWER = "The model's reply gave no answer: {problem}."
"""problem: a clause about the reply, see `ContractFault`."""


async def ask_with_retry(
    llm: ChatModel,
    messages: Sequence[Message],
    sampling: Sampling,
    parse: Callable[[str], T],
    *,
    pattern: str | None = None,
    whole: bool = False,
) -> T:
    """Complete the chat and parse the reply. After a reply that breaks the contract, ask once more and name the error.

    pattern: a regular expression of replies that `parse` accepts. A model that can is kept to it while it writes the
    first reply, unless it may think. The second reply is free, in case the pattern was the cause.
    whole: a reply that was cut off at `max_tokens` breaks the contract too. Raises `ContractFault` when the second
    reply breaks it as well.
    """

    def read(completion: Completion) -> T:
        if whole and completion.finish_reason == "length":
            raise ContractFault(f"it is longer than {sampling.max_tokens} tokens", completion.text)
        if completion.why_empty:
            raise ContractFault(completion.why_empty, completion.text)
        return parse(completion.text)

    can_keep_to_it = "pattern" in llm.capabilities and not sampling.thinking
    first = replace(sampling, pattern=pattern) if can_keep_to_it else sampling
    completion = (await llm.complete(messages, first)).completions[0]
    try:
        return read(completion)
    except ContractFault as fault:
        again: list[Message] = [
            *messages,
            {"role": "assistant", "content": defuse(completion.text) or "(nothing)"},
            {"role": "user", "content": f"This reply cannot be used: {fault.problem}. Reply again in the asked form."},
        ]
    return read((await llm.complete(again, sampling)).completions[0])


def reply_within(tokens: int, context: ThinkingContext) -> Sampling:
    """The greedy sampling of a reply of at most these tokens. Thoughts before it get `max_answer_tokens` more."""
    thoughts = context.max_answer_tokens if context.thinking else 0
    return Sampling(max_tokens=tokens + thoughts, thinking=context.thinking)


def why_no_answer(completion: Completion, answer: str) -> str:
    """Why a reply gave an empty answer, for `NO_ANSWER`; empty if it gave an answer."""
    if answer:
        return ""
    return completion.why_empty or ("it ends before the answer" if completion.text.strip() else "it is empty")
