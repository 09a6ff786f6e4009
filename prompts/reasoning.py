"""The chain-of-thought prompts of SeaKR and its baselines: for the next sentence, the last sentence, or all sentences.

Input: question, passages and the rationales so far; output: a rationale (SeaKR section 3, appendix D). The rationales
are the model's own turns of the chat, so every chat model can continue them. The examples come first: they stay in the
server's prefix cache.
"""

import re
from collections.abc import Iterable, Sequence

from ..state.messages import Message
from ..state.records import Chunk
from . import bare, defuse, render
from .reasoning_examples import ENDING, EXAMPLES, Example

NEXT = "Next sentence."
LAST = f'Last sentence now, the one that begins with "{ENDING}"'


def step_messages(
    question: str, chunks: Sequence[Chunk], rationales: Sequence[str], examples: Sequence[Example] = EXAMPLES
) -> list[Message]:
    """Ask for the next sentence."""
    return _stepwise(question, chunks, rationales, NEXT, examples)


def end_messages(
    question: str, chunks: Sequence[Chunk], rationales: Sequence[str], examples: Sequence[Example] = EXAMPLES
) -> list[Message]:
    """Ask for the last sentence, which gives the final answer."""
    return _stepwise(question, chunks, rationales, LAST, examples)


def whole_messages(question: str, chunks: Sequence[Chunk], examples: Sequence[Example] = EXAMPLES) -> list[Message]:
    """Ask for the whole reasoning in one reply, on one line."""
    system, *own_examples, user = render("reasoning_whole", question=question, chunks=chunks)
    turns = own_examples or _shown((example.question, [" ".join(example.sentences)]) for example in examples)
    return [system, *turns, user]


def final_answer(text: str) -> str | None:
    """The answer that a text states as its final one; None if it states none.

    It is the rest of the line after the last "the final answer is" or "the answer is"; "" if the line ends there.
    Without these words it is the subject of a last sentence "... is the answer". A quotation inside the text states
    nothing. Surrounding quotes, marks of bold type and the full stop are removed.
    """
    stated = _stated(text)
    return _named(text) if stated is None else stated


def end_of(reply: str) -> str:
    """The answer in a reply to `end_messages`: its `final_answer`, or its first line if it has none."""
    answer = final_answer(reply)
    return _tidied(reply.strip().partition("\n")[0]) if answer is None else answer


def beginning_of_answer(reply: str) -> str:
    """The part of an unfinished reply that is in its final answer, however the reply goes on.

    Empty until the words "the final answer is" or "the answer is" have come.
    """
    return (_stated(reply) or "").rstrip(_LOOSE)


def _stepwise(
    question: str, chunks: Sequence[Chunk], rationales: Sequence[str], ask: str, examples: Sequence[Example]
) -> list[Message]:
    system, *own_examples, user = render("reasoning_step", question=question, chunks=chunks)
    turns = own_examples or _shown((example.question, example.sentences) for example in examples)
    if rationales:
        return [system, *turns, *_turns(user["content"], map(defuse, rationales)), {"role": "user", "content": ask}]
    first = user["content"] if ask == NEXT else f"{user['content']}\n{ask}"
    return [system, *turns, {"role": "user", "content": first}]


def _shown(examples: Iterable[tuple[str, Iterable[str]]]) -> list[Message]:
    """The chat turns of examples, which may come from a file."""
    return [
        turn
        for question, sentences in examples
        for turn in _turns(f"Question: {defuse(question)}", map(defuse, sentences))
    ]


def _turns(question: str, sentences: Iterable[str]) -> list[Message]:
    """A question and its sentences as chat turns; a user turn asks for each sentence."""
    turns: list[Message] = []
    for number, sentence in enumerate(sentences):
        turns.append({"role": "user", "content": NEXT if number else question})
        turns.append({"role": "assistant", "content": sentence})
    return turns


def _stated(text: str) -> str | None:
    """The answer behind "the final answer is" or "the answer is"."""
    matches = [match for match in _FINAL.finditer(text) if not _is_quoted(text[: match.start()])]
    return _tidied(text[matches[-1].end() :].partition("\n")[0]) if matches else None


def _named(text: str) -> str | None:
    """The answer in front of "is the answer", where a line ends with these words."""
    ends = list(_IS_THE_ANSWER.finditer(text))
    if not ends:
        return None
    line = text[: ends[-1].start()].rpartition("\n")[2]
    answer = _tidied(_LEAD.sub("", _SENTENCE_END.split(line)[-1].strip()))
    is_a_name = answer and answer.split()[-1].lower() not in _NO_NAMES and not set(answer) & set('"“”')
    return answer if is_a_name else None


def _is_quoted(before: str) -> bool:
    # a quotation mark in front of everything is around the whole reply
    return before.endswith(_OPENING) and before.strip() not in _OPENING


def _tidied(text: str) -> str:
    answer = bare(text, ":\"'“”")
    return answer if _ABBREVIATION.search(answer) else answer.removesuffix(".").rstrip(" \"'“”*_")


_QUESTION = r"(?: to (?:the|this|that) question)?"
_LEAD = re.compile(r"(?:so|thus|therefore|hence)\b,? *", re.IGNORECASE)
_FINAL = re.compile(rf"\b(?:so,? )?the (?:final )?answer{_QUESTION} is\b[ \t]*:?", re.IGNORECASE)
_IS_THE_ANSWER = re.compile(rf"\bis the (?:final )?answer{_QUESTION}[.!*_]*[ \t]*$", re.IGNORECASE | re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[^\W_A-Z][.?!])(?<!\bSt\.)(?<!\b[DMJS]r\.)(?<!\bMrs\.) +")  # no initial, no title
_NO_NAMES = frozenset({"it", "that", "there", "this", "what", "which", "who"})
_LOOSE = ". *_:\"'“”"  # at the end of an answer these may be removed
_OPENING = ('"', "“", "‘", "«", "'")
_ABBREVIATION = re.compile(r"\b(?:[^\W\d]\.){2,}$|\b(?:Jr|Sr|Inc|Ltd|Co|St)\.$")
