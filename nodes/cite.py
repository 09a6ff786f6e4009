"""cite: marks such as [1] behind what a passage supports, and whether it does."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..concurrency import gather_or_cancel
from ..errors import ContextOverflow, ModelUnavailable
from ..models.answer_stream import show_answer
from ..models.interfaces import Judge, Sampling
from ..models.judges import is_chat_model, is_similarity
from ..prompts import answer as answer_prompt
from ..prompts import cited_answer as prompt
from ..prompts.cited_answer import CitedText
from ..resources.resources import Resources
from ..retrieval.chunking import embedding_text
from ..retrieval.sentences import sentences
from ..state.abstention import abstains
from ..state.answer_text import normalised
from ..state.flow import Flow
from ..state.mixins import CitingContext
from ..state.records import Chunk, Citation, Verdict, address_of
from .entailment_pairs import AnswerPairs, judge_pairs, likeliest_label

ROOM = 64
"""Tokens for the marks of an answer."""

UNCHECKED = (
    "The citations are not checked: the judge '{judge}' measures similarity, which is no support. Set "
    "judge=nli:FOLDER-OR-HUB-NAME, or judge=llm for a chat model that can judge."
)


async def cite(state: Flow, context: CitingContext, resources: Resources) -> Flow:
    """Give the answer its marks and check each: does the passage, as the premise, entail what the mark stands behind?

    `generate` has the model write the marks with the answer. Elsewhere the answer comes from a measurement or a
    reasoning that marks would disturb: then the model is asked to repeat the answer with marks. If it repeats something
    else, the marks stand behind the whole answer. `answer` stays as it is.
    """
    answer, evidence = state["answer"], state["evidence"]
    if state.get("abstained") or abstains(answer) or not evidence:
        show_answer(answer)
        return {"cited_answer": "", "citations": []}
    cited, warnings = prompt.read(state.get("cited_answer") or ""), list[str]()
    if cited.text != answer:
        cited, warnings = await _repeated_with_marks(state, context, resources)
    citations = [
        _citation(number, statement, evidence)
        for (_, numbers), statement in zip(cited.marks, statements(cited), strict=True)
        for number in numbers
    ]
    citations = [one for place, one in enumerate(citations) if one not in citations[:place]]
    if wrong := sorted({one["mark"] for one in citations if not one["exists"]}):
        named = ", ".join(f"[{mark}]" for mark in wrong)
        warnings.append(f"The model cited passages that do not exist, and these marks are left out: {named}.")
    checked, unchecked = await _checked(citations, state, context, resources)
    shown = cited.shown(len(evidence))
    show_answer(shown)
    return {"cited_answer": shown, "citations": checked, "warnings": [*warnings, *unchecked]}


def leave_uncited(state: Flow, fault: ModelUnavailable) -> Flow:
    """An answer without marks, since a model does not answer any more."""
    warning = f"The answer is not cited: {fault}"
    return {"cited_answer": "", "citations": [], "warnings": [warning]}


def statements(cited: CitedText) -> list[str]:
    """What each group of marks stands behind: its sentence.

    In a sentence with several groups, the part from the group before it; the last one's part goes to the end.
    """
    text, found = cited.text, list[str]()
    bounds = sentences(text) or [(0, 1)]
    # a mark behind a full stop belongs to the sentence that it ends
    last_letters = [max(len(text[:place].rstrip()) - 1, 0) for place, _ in cited.marks]
    own = [next(bound for bound in bounds if bound[0] <= letter < bound[1]) for letter in last_letters]
    for i, (place, _) in enumerate(cited.marks):
        start, end = own[i]
        start = cited.marks[i - 1][0] if i and own[i - 1] == own[i] else start
        end = place if own[i + 1 : i + 2] == [own[i]] else end
        part = text[start:end].strip(" \t\n,;:")
        if not any(map(str.isalnum, part)):
            part = found[-1] if found and own[i - 1] == own[i] else text[slice(*own[i])].strip()
        found.append(part)
    return found


def with_sources(output: Mapping[str, Any]) -> str:
    """The answer with its marks and a line for each passage that is cited, for readers who see a text alone."""
    sources: dict[int, str] = {}
    for one in output.get("citations") or []:
        page = "" if one["page"] is None else f"page {one['page']}"
        heading = " ".join(one["heading"].split())
        doubt = "does not support it" if one["verdict"] == "unsupported" else ""
        if one["exists"]:
            name = one["title"] or one["chunk_id"]
            told = " ".join(name.split()), page, heading and f'section "{heading}"', one["address"], doubt
            sources[one["mark"]] = ", ".join(filter(None, told))
    answer = str(output.get("cited_answer") or output["answer"]).strip()
    return "\n".join([answer, "", *(f"[{mark}] {sources[mark]}" for mark in sorted(sources))]) if sources else answer


def without_sources(text: str) -> str:
    """An answer of an earlier turn, without its marks and the lines of `with_sources`."""
    return prompt.read(_SOURCES.sub("", text)).text


_SOURCES = re.compile(r"\n\n\[\d+\] [^\n]*(?:\n\[\d+\] [^\n]*)*\Z")


async def _repeated_with_marks(
    state: Flow, context: CitingContext, resources: Resources
) -> tuple[CitedText, list[str]]:
    llm = await resources.llm(context)
    messages = prompt.messages(state["question"], state["evidence"], answer=state["answer"])
    sampling = Sampling(max_tokens=context.max_answer_tokens + ROOM, thinking=bool(getattr(context, "thinking", False)))
    try:
        text = (await llm.complete(messages, sampling)).text
    except ContextOverflow as fault:
        return CitedText(state["answer"], []), [f"The answer is not cited: {fault}"]
    return prompt.read(answer_prompt.parse_or_empty(text)).moved_to(state["answer"]), []


def _citation(number: int, statement: str, evidence: Sequence[Chunk]) -> Citation:
    chunk: Mapping[str, Any] = evidence[number - 1] if 1 <= number <= len(evidence) else {}
    metadata = chunk.get("metadata") or {}
    page, heading = metadata.get("page"), metadata.get("heading")
    return {
        "mark": number,
        "exists": bool(chunk),
        "chunk_id": chunk.get("id"),
        "title": chunk.get("title", ""),
        "address": address_of(chunk),
        "page": page if isinstance(page, int) else None,
        "heading": heading if isinstance(heading, str) else "",
        "statement": statement,
        "verdict": "unchecked" if chunk else None,
    }


async def _checked(
    citations: Sequence[Citation], state: Flow, context: CitingContext, resources: Resources
) -> tuple[list[Citation], list[str]]:
    """The citations with their verdicts, and why some are unchecked."""
    if not any(one["exists"] for one in citations):
        return list(citations), []
    judge = await resources.judge(context)
    if is_similarity(judge.name):
        return list(citations), [UNCHECKED.format(judge=judge.name)]

    async def checked(one: Citation) -> Citation:
        if not one["exists"]:
            return one
        chunk = state["evidence"][one["mark"] - 1]
        return {**one, "verdict": await _verdict(one["statement"], chunk, state["question"], judge)}

    found = await gather_or_cancel(map(checked, citations))
    unjudged = sum(one["verdict"] == "unchecked" for one in found)
    warning = f"The judge '{judge.name}' gave no verdict on {unjudged} of the citations."
    return found, [warning] if unjudged else []


async def _verdict(statement: str, chunk: Chunk, question: str, judge: Judge) -> Verdict:
    """Does the passage entail the statement?

    The chat model reads the whole passage and the question. A cross-encoder has learned from pairs of sentences: it
    judges each sentence below the title, and without the question, which makes every pair alike
    (docs/measurements/citations.md). Only a bare yes or no says nothing without its question.
    """
    as_answers = is_chat_model(judge.name) or normalised(statement) in ("yes", "no")
    text = chunk["text"]
    parts = [text] if as_answers else [text[start:end].strip() for start, end in sentences(text)]
    premises = [embedding_text({**chunk, "text": part}) for part in parts]
    pairs = AnswerPairs([(premise, statement) for premise in premises])
    (probabilities,) = await judge_pairs(judge, question if as_answers else "", [pairs])
    labels = [likeliest_label(probabilities(premise, statement)) for premise in premises]
    return "supported" if "entailment" in labels else "unchecked" if None in labels else "unsupported"
