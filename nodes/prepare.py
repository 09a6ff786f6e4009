"""prepare: the first step of every graph. It refuses what cannot be answered before any model is called."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..errors import CapabilityMissing, UserFault
from ..resources.resources import Resources
from ..state.calibration import AnswerCalibration, identity
from ..state.context import BaseContext
from ..state.flow import begin_anew
from ..state.mixins import CorpusContext
from ..state.records import Anew

Hook = Callable[[Any, Any, Resources], Awaitable[Mapping[str, Any]]]
"""A technique's own part of `prepare`, a node that returns what it adds to the state."""

LONGEST_QUESTION = 20_000
"""Characters."""


async def prepare(
    state: Mapping[str, Any],
    context: BaseContext,
    resources: Resources,
    *,
    schema: type,
    hooks: Sequence[Hook] = (),
) -> dict[str, Any]:
    """Check the question and the chat model, forget the thread's last question, and open what the context names.

    schema: the type of the graph's state. The hooks run in their order, between the checks and the opening.
    If a hook sets `given`, the caller gave the chunks, and the corpus is opened only if it sets `needs_corpus`.
    Raises `UserFault` for an empty or overlong question, an unknown model, and a corpus that cannot be read;
    `CapabilityMissing` for a chat model that cannot do what the settings need.
    """
    check_question(state.get("question"))
    warnings = await check_capabilities(context, resources)
    update = {**begin_anew(schema), "settings": context.model_dump(mode="json"), "chosen": context.chosen}
    for hook in hooks:
        update |= await hook(state, context, resources)
    await open_resources(context, resources, corpus=not update.get("given") or bool(update.get("needs_corpus")))
    await check_calibration(update, context, resources)
    return {**update, "warnings": Anew([*warnings, *(update["warnings"] or [])])}


async def check_calibration(state: Mapping[str, Any], context: BaseContext, resources: Resources) -> None:
    """Raise `UserFault` if the context names a calibration that was made with other settings, model or corpus.

    state: its `given` says whether the caller gave the chunks, which makes the corpus one of no importance.
    """
    path = getattr(context, "calibration", "")
    if not path:
        return
    calibration = await asyncio.to_thread(AnswerCalibration.load, path, context.graph, context)
    if state.get("given") or not isinstance(context, CorpusContext):
        return
    if None not in (calibration.corpus, corpus := await resources.known_by(context)) and corpus != calibration.corpus:
        raise UserFault(
            f"The calibration '{path}' was made with another corpus than '{context.corpus}': use the corpus it was "
            "made with, or calibrate again."
        )


async def void_because(
    state: Mapping[str, Any], calibration: AnswerCalibration, context: BaseContext, resources: Resources
) -> str:
    """Why a calibration that passed `check_calibration` promises nothing of this run, as a sentence; empty if it does.

    It promises something of the answers of its model, from a corpus that is known to be the one that it was made with.
    """
    if state.get("given"):
        return "The chunks were given with the question, and the calibration is for those of a corpus."
    if calibration.model != (model := identity((await resources.llm(context)).name)):
        return f"The calibration was made with the chat model {calibration.model}, and {model} wrote the answer."
    if not isinstance(context, CorpusContext):
        return ""
    if calibration.corpus is None:
        return "The calibration does not say which corpus it was made with, so it cannot be compared with this one."
    if await resources.known_by(context) is None:
        return "The chunks are found by a retriever whose corpus cannot be compared with that of the calibration."
    return ""


def check_question(question: object) -> None:
    """Refuse a question that is missing, empty or longer than `LONGEST_QUESTION` characters."""
    if not isinstance(question, str) or not question.strip():
        raise UserFault('The question is empty: give the graph {"question": "..."} with some text.')
    if len(question) > LONGEST_QUESTION:
        raise UserFault(
            f"The question has {len(question)} characters and the limit is {LONGEST_QUESTION}: "
            "ask in fewer words, and put long material into the corpus."
        )


async def check_capabilities(context: BaseContext, resources: Resources) -> list[str]:
    """Refuse a chat model that lacks a capability that the settings need; the warnings of one that is used in part.

    context: fitted (see `fitted`).
    """
    llm = await resources.llm(context)
    tried = ", ".join(dict.fromkeys(llm.lacks.values()))
    if refusal := context.refusal(llm.name, llm.capabilities):
        said = ", ".join(clause for clause in dict.fromkeys(llm.lacks.values()) if "(" in clause)  # the server's words
        raise CapabilityMissing(f"{refusal.removesuffix('.')}; it was tried: {said}." if said else refusal)
    useless = [
        f"{name} has no effect with {cause}={getattr(context, cause)}, which auto has chosen."
        for name, cause in context.unused().items()
        if cause in context.chosen
    ]
    return [*([f"The chat model {tried}."] if tried else []), *useless]


async def open_resources(context: Any, resources: Resources, *, corpus: bool = True) -> None:  # noqa: ANN401 - each context has its own fields
    """Check the chat model and open what the context's fields name: faults come before the first model call."""
    await check_capabilities(context, resources)
    fields = type(context).model_fields.keys()
    openers: dict[str, Callable[[Any], Awaitable[object]]] = {
        "rephraser": resources.rephraser,
        "judge": resources.judge,
        "examples": resources.examples,
        "reranker": resources.reranker,
        "first_stage": resources.first_stage,
        "graph_encoder": resources.document_graph,
        "corpus": resources.retriever,
    }
    # a first stage opens as much of the corpus as it reads
    needed = {"first_stage": corpus, "corpus": corpus and getattr(context, "uses_vectors", True)}
    for field, open_resource in openers.items():
        if field in fields and context.is_used(field) and needed.get(field, True):
            await open_resource(context)
