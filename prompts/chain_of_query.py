"""The Chain-of-Query prompt (SearChain, Xu et al., WWW 2024, section 3.1): sub-questions with the model's answers."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ContractFault
from ..state.answer_text import normalised
from ..state.messages import Message
from ..state.sunar import ChainNode, Hop
from . import bare, render


class ChainOfQuery(NamedTuple):
    """The chain's nodes, and its final answer; empty if the last node is unsolved."""

    nodes: list[ChainNode]
    answer: str


def messages(question: str, hops: Sequence[Hop]) -> list[Message]:
    """Ask for the chain that goes on from the hops."""
    return render("chain_of_query", question=question, hops=hops)


def pattern(most: int) -> str:
    """A regular expression of chains of up to `most` nodes with a known answer; `parse` reads more."""
    text = r"[^\s*_][^\n]{0,200}"
    return rf"(Query: {text}\nAnswer: {text}\n){{0,{most}}}(Query: {text}\nAnswer: unknown|Final answer: {text})"


def parse(reply: str) -> ChainOfQuery:
    """The chain up to its first unsolved node, or else to its final answer.

    A node without an answer is unsolved. Raises `ContractFault` if there is no query and no final answer.
    """
    nodes: list[ChainNode] = []
    for match in _LINE.finditer(reply):
        kind, text = match["kind"].lower(), bare(match["text"])
        is_open = bool(nodes) and not nodes[-1]["answer"]
        if "query" in kind and text:
            if is_open:
                break
            # some models go on after their question: keep it up to its question mark
            nodes.append({"question": text[: text.find("?") + 1] or text, "answer": ""})
        elif "final" in kind and text and not is_open:
            return ChainOfQuery(nodes, text)
        elif kind == "answer" and is_open:
            if normalised(text) in _UNKNOWN:
                break
            nodes[-1]["answer"] = text
    if not nodes:
        raise ContractFault("it has no line 'Query: ...' or 'Final answer: ...'", reply)
    return ChainOfQuery(nodes, "")


_UNKNOWN = {"", "unknown", "unsolved", "not known", "none", "na", "i do not know", "i dont know"}

_LINE = re.compile(
    r"^[ \t*_#-]*(?P<kind>(?:unsolved )?query|(?:the |so the )?final answer(?: is)?|answer)(?: \d{1,2})?[ \t*_]*:"
    r"(?P<text>.*)$",
    re.IGNORECASE | re.MULTILINE,
)
