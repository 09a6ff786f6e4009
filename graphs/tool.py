"""A graph as a tool of an agent, such as one of `langchain.agents.create_agent`: question in, answer out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, ToolException
from pydantic import BaseModel, Field

from ..errors import DubitoError
from ..nodes.cite import with_sources
from ..state.context import BaseContext
from .registry import context_type, graph_named

if TYPE_CHECKING:
    from ..resources.resources import Resources

FROM_DOCUMENTS = "Answers a question from a corpus of documents."

ONE_QUESTION = "Ask one full question in plain words: the tool does not see the conversation."

DESCRIPTION = f"{FROM_DOCUMENTS} {ONE_QUESTION}"

OWN_LIMITS: RunnableConfig = {"recursion_limit": 10_000}
"""Our graphs have their own limits. Below a tool LangChain's limit is 25 supersteps, which would stop them early."""

NO_ANSWER = "No answer was found in the documents."

NOT_CERTAIN = "Not certain enough to answer. What the documents say:"

SHOWN = 3
"""Chunks of evidence that an agent's model gets with an answer that is withheld."""


class Ask(BaseModel):
    """The input of the tool."""

    question: str = Field(description="One full question that can be understood by itself.")


def as_tool(
    graph: str,
    context: BaseContext | Mapping[str, Any] | None = None,
    *,
    resources: Resources | None = None,
    name: str = "",
    description: str = DESCRIPTION,
) -> StructuredTool:
    """A tool whose content is the answer and whose artifact is the graph's whole output: evidence, uncertainty, usage.

    graph: the name of the graph; context: its settings, the defaults if not given; resources: live objects to use in
    place of the names in the context; name, description: of the tool, for the agent's model; `name` defaults to the
    graph's name.
    If the question is refused or the model does not answer, the tool's content is one sentence that says why.
    The graph's steps stream with the agent's steps if the agent is streamed with `subgraphs=True`.
    Raises `UserFault` for an unknown graph and for a wrong setting.
    """
    compiled = graph_named(graph, resources)
    settings = context if isinstance(context, BaseContext) else context_type(compiled)(**(context or {}))

    def content_and_artifact(output: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return words_for_agent(output), dict(output)

    def ask(question: str) -> tuple[str, dict[str, Any]]:
        try:
            return content_and_artifact(compiled.invoke({"question": question}, OWN_LIMITS, context=settings))
        except DubitoError as fault:
            raise ToolException(str(fault)) from fault

    async def ask_async(question: str) -> tuple[str, dict[str, Any]]:
        try:
            return content_and_artifact(await compiled.ainvoke({"question": question}, OWN_LIMITS, context=settings))
        except DubitoError as fault:
            raise ToolException(str(fault)) from fault

    return StructuredTool.from_function(
        ask,
        ask_async,
        name=name or graph,
        description=description,
        args_schema=Ask,
        response_format="content_and_artifact",
        handle_tool_error=True,
    )


def words_for_agent(output: Mapping[str, Any]) -> str:
    """The answer, with its sources if it is cited; or the best evidence if it is uncertain; or that there is none."""
    if output["abstained"] and output["evidence"]:
        evidence = [f"- {chunk['title']}: {chunk['text']}" for chunk in output["evidence"][:SHOWN]]
        return "\n".join([NOT_CERTAIN, *evidence])
    return with_sources(output) or NO_ANSWER
