"""begin_review, review: a person decides about an uncertain answer."""

from collections.abc import Mapping
from typing import Any, get_args

from langgraph.types import interrupt

from ..errors import UserFault, either
from ..resources.resources import Resources
from ..state.context import BaseContext
from ..state.flow import begin_anew
from ..state.reviewed import Action, Decision, ReviewedState
from .given_chunks import given_chunks
from .prepare import check_question

STOPPED = "A person stopped the run: there is no answer."

ACCEPTED = "A person accepted the answer, which is less certain than the calibration allows."


async def begin_review(state: ReviewedState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Check the question and clear the state of the thread's earlier question."""
    check_question(state.get("question"))
    return begin_anew(ReviewedState)


async def review(state: ReviewedState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Interrupt the run until a person gives a `Decision`; an invalid decision is asked for again with the reason."""
    withheld = state["withheld_answer"]
    question = {
        "question": state["question"],
        "answer": state["answer"] or withheld,
        "evidence": state["evidence"],
        "dse": state["dse"],
        "decide": {"action": either(get_args(Action)), "chunks": "with answer: the texts to answer from"},
    }
    problem: dict[str, str] = {}
    while True:
        reply = interrupt({**question, **problem})
        try:
            decision = _decision(reply)
            break
        except UserFault as fault:
            problem = {"problem": str(fault)}
    if decision["action"] == "answer":
        return {"decisions": [decision], "chunks": decision["chunks"]}
    if decision["action"] == "stop":
        no_answer = {"answer": "", "cited_answer": "", "citations": []}
        return {"decisions": [decision], **no_answer, "warnings": [STOPPED]}
    if not withheld:
        return {"decisions": [decision]}
    certificate = state["certificate"] and {**state["certificate"], "holds": False, "sentence": ACCEPTED}
    given = {"answer": withheld, "withheld_answer": "", "abstained": False, "certificate": certificate}
    return {"decisions": [decision], **given}


def _decision(reply: object) -> Decision:
    """A person's reply as a decision; raises `UserFault` if it is invalid."""
    actions = get_args(Action)
    named = reply.get("action") if isinstance(reply, Mapping) else reply
    action: Action | None = next((action for action in actions if action == named), None)
    if action is None:
        raise UserFault(f'Decide by {{"action": "..."}} with {either(actions)}, and not {str(reply)[:80]!r}.')
    if action != "answer":
        return {"action": action}
    chunks = reply.get("chunks") if isinstance(reply, Mapping) else None
    if not chunks:
        raise UserFault('To answer from other chunks, give the chunks: {"action": "answer", "chunks": ["..."]}.')
    given_chunks(chunks)
    return {"action": "answer", "chunks": chunks}
