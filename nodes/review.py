"""begin_review, review: a person looks at an answer that cannot be relied on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from langgraph.types import interrupt

from ..errors import UserFault, either
from ..models.resources import Resources
from ..state.context import BaseContext
from ..state.reviewed import Action, Decision, ReviewedState
from .prepare import check_question
from .prepare_dense import given_chunks

STOPPED = "A person stopped the run: there is no answer."


async def begin_review(state: ReviewedState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Begin anew what an earlier question of the thread left."""
    check_question(state.get("question"))
    return {"chunks": None, "decisions": None, "usage": None, "warnings": None}


async def review(state: ReviewedState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Stop and wait for a person's `Decision`; one that cannot be followed is asked for again, with the reason."""
    shown = {
        "question": state["question"],
        "answer": state["answer"],
        "evidence": state["evidence"],
        "dse": state["dse"],
        "decide": {"action": either(get_args(Action)), "chunks": "with answer: the texts to answer from"},
    }
    problem = ""
    while True:
        given = interrupt({**shown, "problem": problem} if problem else shown)
        try:
            decision = _decision(given)
            break
        except UserFault as fault:
            problem = str(fault)
    if decision["action"] == "answer":
        return {"decisions": [decision], "chunks": decision["chunks"]}
    if decision["action"] == "stop":
        return {"decisions": [decision], "answer": "", "warnings": [STOPPED]}
    return {"decisions": [decision]}


def _decision(given: object) -> Decision:
    """Raises `UserFault` for what is none."""
    actions = get_args(Action)
    named = given.get("action") if isinstance(given, Mapping) else given
    action: Action | None = next((one for one in actions if one == named), None)
    if action is None:
        raise UserFault(f'Decide by {{"action": "..."}} with {either(actions)}, and not {str(given)[:80]!r}.')
    if action != "answer":
        return {"action": action}
    chunks = given.get("chunks") if isinstance(given, Mapping) else None
    if not chunks:
        raise UserFault('To answer from other chunks give them: {"action": "answer", "chunks": ["..."]}.')
    given_chunks(chunks)
    return {"action": "answer", "chunks": chunks}
