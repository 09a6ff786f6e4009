"""The chain-of-thought prompts of SeaKR and its baselines: for the next sentence, the last sentence, or all sentences.

Input: question, passages and the rationales so far; output: a rationale (SeaKR section 3, appendix D). The rationales
are the model's own turns of the chat, so every chat model can continue them. Ten fixed examples come first: they stay
in the server's prefix cache.
"""

import re
from collections.abc import Iterable, Sequence

from ..state.messages import Message
from ..state.records import Chunk
from . import bare, defuse, render
from .reasoning_examples import ENDING, EXAMPLES

NEXT = "Next sentence."
LAST = f'Last sentence now, the one that begins with "{ENDING}"'


def step_messages(question: str, chunks: Sequence[Chunk], rationales: Sequence[str]) -> list[Message]:
    """Ask for the next sentence."""
    return _stepwise(question, chunks, rationales, NEXT)


def end_messages(question: str, rationales: Sequence[str]) -> list[Message]:
    """Ask for the last sentence, which gives the final answer."""
    return _stepwise(question, [], rationales, LAST)


def whole_messages(question: str, chunks: Sequence[Chunk]) -> list[Message]:
    """Ask for the whole reasoning in one reply, on one line."""
    system, *own_examples, user = render("reasoning_whole", question=question, chunks=chunks)
    examples = own_examples or [
        turn for example in EXAMPLES for turn in _turns(f"Question: {example.question}", [" ".join(example.sentences)])
    ]
    return [system, *examples, user]


def final_answer(text: str) -> str | None:
    """The rest of the line after the last "So the final answer is"; None if the text does not contain these words.

    The words of a quotation inside the text do not count. Surrounding quotes, marks of bold type and the full stop are
    removed. "" if the line ends after these words.
    """
    matches = [match for match in _FINAL.finditer(text) if not _is_quoted(text[: match.start()])]
    return _tidied(text[matches[-1].end() :].partition("\n")[0]) if matches else None


def end_of(reply: str) -> str:
    """The answer in a reply to `end_messages`: its `final_answer`, or its first line if it has none."""
    answer = final_answer(reply)
    return _tidied(reply.strip().partition("\n")[0]) if answer is None else answer


def beginning_of_answer(reply: str) -> str:
    """The part of an unfinished reply that is in its final answer, however the reply goes on.

    Empty until the words "So the final answer is" have come.
    """
    return (final_answer(reply) or "").rstrip(_LOOSE)


def _stepwise(question: str, chunks: Sequence[Chunk], rationales: Sequence[str], ask: str) -> list[Message]:
    system, *own_examples, user = render("reasoning_step", question=question, chunks=chunks)
    examples = own_examples or [
        turn for example in EXAMPLES for turn in _turns(f"Question: {example.question}", example.sentences)
    ]
    if rationales:
        return [system, *examples, *_turns(user["content"], map(defuse, rationales)), {"role": "user", "content": ask}]
    first = user["content"] if ask == NEXT else f"{user['content']}\n{ask}"
    return [system, *examples, {"role": "user", "content": first}]


def _turns(question: str, sentences: Iterable[str]) -> list[Message]:
    """A question and its sentences as chat turns; a user turn asks for each sentence."""
    turns: list[Message] = []
    for number, sentence in enumerate(sentences):
        turns.append({"role": "user", "content": NEXT if number else question})
        turns.append({"role": "assistant", "content": sentence})
    return turns


def _is_quoted(before: str) -> bool:
    # a quotation mark in front of everything is around the whole reply
    return before.endswith(_OPENING) and before.strip() not in _OPENING


def _tidied(text: str) -> str:
    answer = bare(text, ":\"'“”")
    return answer if _ABBREVIATION.search(answer) else answer.removesuffix(".").rstrip(" \"'“”*_")


_FINAL = re.compile(r"\b(?:so,? )?the final answer is\b[ \t]*:?", re.IGNORECASE)
_LOOSE = ". *_:\"'“”"  # at the end of an answer these may be removed
_OPENING = ('"', "“", "‘", "«", "'")
_ABBREVIATION = re.compile(r"\b(?:[^\W\d]\.){2,}$|\b(?:Jr|Sr|Inc|Ltd|Co|St)\.$")
