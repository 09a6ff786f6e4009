"""Choosing by asking: for models that give neither option probabilities nor constrained output."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

from ..errors import ContractFault
from .interfaces import Message, Reply, Sampling

Complete = Callable[[Sequence[Message], Sampling], Awaitable[Reply]]
"""As `ChatModel.complete`."""

LONGEST_REPLY = 1024
"""Tokens of a reply that should name one option: a model that thinks first needs them, another stops at once."""

_MARKS = " \t\r\n\"'`*_.,;:!?()[]{}<>“”‘’«»"


async def ask_and_parse(complete: Complete, messages: Sequence[Message], options: Sequence[str]) -> str:
    """Ask for one of the options and return the one that the reply names; ask once more, naming the problem.

    The options are listed at the end of the chat. Raises `ContractFault` if the second reply names none either.
    """
    listed = " | ".join(options)
    asked = _with_request(messages, f"Reply with exactly one of these and nothing else: {listed}")
    text = (await complete(asked, Sampling(max_tokens=LONGEST_REPLY))).text
    if (option := named_option(text, options)) is not None:
        return option
    problem = f"The reply names none, or several, of the options: {listed}"
    again: Message = {"role": "user", "content": f"{problem}. Reply with exactly one of them and nothing else."}
    answered: list[Message] = [*asked, {"role": "assistant", "content": text}] if text.strip() else asked
    # templates of many models refuse two user turns in a row
    asked = _with_request(answered, again["content"])
    text = (await complete(asked, Sampling(max_tokens=LONGEST_REPLY))).text
    if (option := named_option(text, options)) is not None:
        return option
    raise ContractFault(f"{problem}.", text)


def named_option(reply: str, options: Sequence[str]) -> str | None:
    """The option that a reply is, whatever its case and punctuation, or else the only one that it names.

    Where two options differ in nothing but case or punctuation, these count. An option is named where it stands as a
    whole word: not inside another word or option, nor as a part of a number (1 is in neither 10, 1.5, -1 nor 1-2).
    """
    for form in (str.strip, lambda text: text.strip().casefold(), _bare):
        same = [option for option in options if form(option) and form(option) == form(reply)]
        if len(same) == 1:
            return same[0]
    rest, named = reply, []
    # longest first, and taken out: "partly correct" does not name "correct"
    for option in sorted(filter(str.strip, options), key=len, reverse=True):
        rest, times = _whole_word(option).subn(" \0 ", rest)
        if times:
            named.append(option)
    return named[0] if len(named) == 1 else None


def _bare(text: str) -> str:
    return text.strip(_MARKS).casefold()


def _whole_word(option: str) -> re.Pattern[str]:
    words = r"\s+".join(re.escape(word) for word in option.split())
    # a letter is an option as written; in lower case it may be the article
    flags = re.NOFLAG if len(option) == 1 and option.isalpha() else re.IGNORECASE
    before = r"(?<!\w)(?<!\w-)" + (r"(?<!-)(?<!\d[.,])" if option[:1].isdigit() else "")
    after = r"(?!\w)(?!-\w)" + (r"(?![.,]\d)" if option[-1:].isdigit() else "")
    return re.compile(before + words + after, flags)


def _with_request(messages: Sequence[Message], request: str) -> list[Message]:
    if messages and messages[-1]["role"] == "user":
        last: Message = {"role": "user", "content": f"{messages[-1]['content']}\n\n{request}"}
        return [*messages[:-1], last]
    return [*messages, {"role": "user", "content": request}]
