"""Choice by prompt, for models that give neither option probabilities nor constrained output."""

import re
from collections.abc import Awaitable, Callable, Sequence

from ..errors import ContractFault
from ..prompts import defuse
from .interfaces import Choice, Message, Reply, Sampling, Tokens

Complete = Callable[[Sequence[Message], Sampling], Awaitable[Reply]]
"""As `ChatModel.complete`."""

LONGEST_REPLY = 1024
"""The most tokens of a reply that should name one option; models that think first need them."""

_MARKS = " \t\r\n\"'`*_.,;:!?()[]{}<>“”‘’«»"


async def ask_and_parse(complete: Complete, messages: Sequence[Message], options: Sequence[str]) -> Choice:
    """List the options at the end of the chat; the option that the reply names has probability 1.

    A reply that names no single option is asked again once. `ContractFault` if the second reply fails too.
    """
    listed = " | ".join(options)
    request = _with_request(messages, f"Reply with exactly one of these and nothing else: {listed}")
    reply = await complete(request, Sampling(max_tokens=LONGEST_REPLY))
    if (option := named_option(reply.text, options)) is not None:
        return _certain(option, options, reply.tokens)
    problem = f"The reply names none, or several, of the options: {listed}"
    replied: list[Message] = (
        [*request, {"role": "assistant", "content": defuse(reply.text)}] if reply.text.strip() else request
    )
    # joined to a user turn at the end, because many chat templates refuse two user turns in a row
    again = _with_request(replied, f"{problem}. Reply with exactly one of them and nothing else.")
    second = await complete(again, Sampling(max_tokens=LONGEST_REPLY))
    if (option := named_option(second.text, options)) is not None:
        return _certain(option, options, reply.tokens + second.tokens)
    spent = reply.tokens + second.tokens
    raise ContractFault(f"{problem}.", second.text, (spent.prompt, spent.completion))


def _certain(chosen: str, options: Sequence[str], tokens: Tokens) -> Choice:
    return Choice({option: float(option == chosen) for option in options}, tokens)


def named_option(reply: str, options: Sequence[str]) -> str | None:
    """The option that equals the reply, else the only option that the reply names.

    Case and punctuation count only if options differ in nothing else. A reply names an option that it holds as a whole
    word: not inside another word or option, nor as part of a number (10, 1.5, -1 and 1-2 do not name 1).
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
    # a single letter counts in its own case: "a" may be the article
    flags = re.NOFLAG if len(option) == 1 and option.isalpha() else re.IGNORECASE
    before = r"(?<!\w)(?<!\w-)" + (r"(?<!-)(?<!\d[.,])" if option[:1].isdigit() else "")
    after = r"(?!\w)(?!-\w)" + (r"(?![.,]\d)" if option[-1:].isdigit() else "")
    return re.compile(before + words + after, flags)


def _with_request(messages: Sequence[Message], request: str) -> list[Message]:
    if messages and messages[-1]["role"] == "user":
        last: Message = {"role": "user", "content": f"{messages[-1]['content']}\n\n{request}"}
        return [*messages[:-1], last]
    return [*messages, {"role": "user", "content": request}]
