"""listen, standalone, reply: the nodes of a graph's chat form, before and after the graph itself."""

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from ..errors import ContextOverflow, ContractFault, UserFault
from ..models.answer_stream import answer_id, show_answer
from ..models.interfaces import Sampling
from ..prompts import standalone as prompt
from ..resources.resources import Resources
from ..state.chat import ChatState, Conversation, Turn
from ..state.context import BaseContext
from ..state.flow import begin_anew
from .cite import with_sources, without_sources
from .prepare import check_question
from .structured_reply import ask_with_retry

LONGEST_REWRITE = 200
"""Tokens."""

NO_ANSWER = "I found no answer to that."

SHOWN = ("question", "citations", "evidence", "uncertainty", "abstained", "withheld_answer", "certificate", "warnings")
"""The keys of the graph's output that the message has as `response_metadata`."""

NOT_CERTAIN = "I am not certain enough to answer that."


async def listen(state: ChatState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Put the last message into `question` and the earlier messages of user and assistant into `turns`.

    Raises `UserFault` if the last message is not from the user, and for an empty or overlong question.
    """
    messages = state.get("messages") or []
    if not messages or not isinstance(messages[-1], HumanMessage):
        raise UserFault('The last message is not a question: end with {"role": "user", "content": "..."}.')
    question = _text(messages[-1])
    check_question(question)
    # the marks of an earlier answer name passages that the next prompts do not show
    plain = without_sources if getattr(context, "cite", False) else str
    turns: list[Turn] = [
        {"role": "user", "text": text}
        if isinstance(message, HumanMessage)
        else {"role": "assistant", "text": plain(text)}
        for message in messages[:-1]
        if isinstance(message, HumanMessage | AIMessage) and (text := _text(message))
    ]
    return {**begin_anew(ChatState, kept=Conversation), "question": question, "turns": turns}


async def standalone(state: ChatState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Rewrite a follow-up question so that it can be understood without the conversation.

    If the model's replies are malformed, or the conversation is longer than its window, the question stays as it is and
    a warning says so.
    """
    llm = await resources.llm(context)
    request = prompt.messages(state["turns"], state["question"])
    try:
        return {"question": await ask_with_retry(llm, request, Sampling(max_tokens=LONGEST_REWRITE), prompt.parse)}
    except (ContractFault, ContextOverflow):
        return {"warnings": ["The question could not be rewritten so that it stands alone; it was asked as it is."]}


async def reply(state: ChatState, context: BaseContext, resources: Resources) -> dict[str, Any]:
    """Append the answer as a message.

    With citations, lines below the answer name the passages. Its `response_metadata` has the question that the graph
    answered, the citations, the evidence, the uncertainty, a withheld answer, the certificate and the warnings.
    """
    output: Mapping[str, Any] = state
    metadata = {key: output[key] for key in SHOWN}
    text = with_sources(output) or (NOT_CERTAIN if state["abstained"] else NO_ANSWER)
    show_answer(text)
    # the id of the pieces that were streamed: a front end shows the message once
    return {"messages": [AIMessage(text, id=answer_id(), response_metadata=metadata)]}


def _text(message: AnyMessage) -> str:
    """The text of a message, without parts of other kinds such as pictures."""
    return str(message.text).strip()
