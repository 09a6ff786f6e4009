"""A graph as a tool of somebody's agent, such as `langchain.agents.create_agent`: a question in, the answer out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool, ToolException
from pydantic import BaseModel, Field

from ..errors import DubitoError
from .registry import graph_named

if TYPE_CHECKING:
    from ..models.resources import Resources
    from ..state.context import BaseContext

DESCRIPTION = (
    "Answers a question from a corpus of documents. Ask one full question in plain words; the tool knows nothing of "
    "the conversation."
)

OWN_LIMITS: RunnableConfig = {"recursion_limit": 10_000}
"""Our graphs end by their own limits; LangChain's for what runs below a tool, 25 steps, would end them before."""

NO_ANSWER = "No answer was found in the documents."


class Ask(BaseModel):
    """What the tool takes."""

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

    graph: its name; context: its settings, the defaults if none; resources: live objects to use in place of what the
    context names; name, description: what the agent's model is told, the name being the graph's if none is given.
    A question that cannot be answered as it is, and a model that does not answer, become the tool's content, one
    sentence that the agent can act upon. The steps inside stream with the agent's, if it is streamed with subgraphs.
    Raises `UserFault` for an unknown graph.
    """
    compiled = graph_named(graph, resources)

    def told(output: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return str(output["answer"]).strip() or NO_ANSWER, dict(output)

    def ask(question: str) -> tuple[str, dict[str, Any]]:
        try:
            return told(compiled.invoke({"question": question}, OWN_LIMITS, context=context))
        except DubitoError as fault:
            raise ToolException(str(fault)) from fault

    async def ask_async(question: str) -> tuple[str, dict[str, Any]]:
        try:
            return told(await compiled.ainvoke({"question": question}, OWN_LIMITS, context=context))
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
