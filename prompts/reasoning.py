"""The chain-of-thought prompts of SeaKR and its baselines: the next sentence, the last one, or all of them.

After SeaKR section 3 and appendix D: question, passages and the rationales so far in, a rationale out. The rationales
are the model's own turns, so that every chat model can go on from them; ten examples come before the question, always
the same, so that a server reads them once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..state.messages import Message
from ..state.records import Chunk
from . import bare, render
from .reasoning_examples import EXAMPLES

ENDING = "So the final answer is:"
NEXT = "Next sentence."
LAST = f'Last sentence now, the one that begins with "{ENDING}"'


def step_messages(question: str, chunks: Sequence[Chunk], rationales: Sequence[str]) -> list[Message]:
    """Ask for the next sentence after the rationales so far."""
    return _stepwise(question, chunks, rationales, NEXT)


def end_messages(question: str, rationales: Sequence[str]) -> list[Message]:
    """Ask for the final answer to which the rationales lead."""
    return _stepwise(question, [], rationales, LAST)


def whole_messages(question: str, chunks: Sequence[Chunk]) -> list[Message]:
    """Ask for the whole reasoning in one reply, on one line."""
    system, user = render("reasoning_whole", question=question, chunks=chunks)
    examples = [
        turn
        for example in EXAMPLES
        for turn in _turns(f"Question: {example.question}", [" ".join([*example.facts, f"{ENDING} {example.answer}"])])
    ]
    return [system, *examples, user]


def final_answer(text: str) -> str | None:
    """What follows the last "So the final answer is" of a text, on its line; None where those words do not occur.

    Without quotes, the marks of bold and the full stop around it; "" if nothing follows.
    """
    found = list(_FINAL.finditer(text))
    return _tidied(text[found[-1].end() :].partition("\n")[0]) if found else None


def end_of(reply: str) -> str:
    """The answer in a reply to `end_messages`: what follows the words, or the first line where they are left out."""
    answer = final_answer(reply)
    return _tidied(reply.strip().partition("\n")[0]) if answer is None else answer


def _stepwise(question: str, chunks: Sequence[Chunk], rationales: Sequence[str], ask: str) -> list[Message]:
    system, user = render("reasoning_step", question=question, chunks=chunks)
    examples = [
        turn
        for example in EXAMPLES
        for turn in _turns(f"Question: {example.question}", [*example.facts, f"{ENDING} {example.answer}"])
    ]
    if rationales:
        return [system, *examples, *_turns(user["content"], rationales), {"role": "user", "content": ask}]
    first = user["content"] if ask == NEXT else f"{user['content']}\n{ask}"
    return [system, *examples, {"role": "user", "content": first}]


def _turns(question: str, sentences: Sequence[str]) -> list[Message]:
    """A question and the sentences said so far, each asked for by a turn of its own."""
    turns: list[Message] = []
    for number, sentence in enumerate(sentences):
        turns.append({"role": "user", "content": NEXT if number else question})
        turns.append({"role": "assistant", "content": sentence})
    return turns


def _tidied(text: str) -> str:
    answer = bare(text, ":\"'“”")
    return answer if _ABBREVIATION.search(answer) else answer.removesuffix(".").rstrip(" \"'“”*_")


_FINAL = re.compile(r"\b(?:so,? )?the final answer is\b[ \t]*:?", re.IGNORECASE)
_ABBREVIATION = re.compile(r"\b(?:[^\W\d]\.){2,}$|\b(?:Jr|Sr|Inc|Ltd|Co|St)\.$")
