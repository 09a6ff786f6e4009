"""Any graph as a chat: messages in, the answer to the last one behind them (Studio's chat mode, chat front ends).

    listen ─┬─────────────────┬─> GRAPH ──> reply
            └──> standalone ──┘

A follow-up question ("and when was she born?") is first put into words that stand alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from langgraph.graph import END, START, StateGraph

from ..models.resources import Resources
from ..nodes.converse import listen, reply, standalone
from ..state.chat import ChatOutput, ChatState, Conversation
from .registry import graph_named
from .wiring import RETRY, Steps

if TYPE_CHECKING:
    from ..state.context import BaseContext


def build(graph: str, resources: Resources | None = None) -> StateGraph[ChatState, Any, Conversation, ChatOutput]:
    """Wire the chat form of a graph, whose context it has; `resources` holds live objects as in the graph itself.

    Raises `UserFault` for an unknown graph.
    """
    technique = graph_named(graph, resources)
    settings = cast("type[BaseContext]", technique.builder.context_schema)
    steps = Steps(settings, resources)
    chat = StateGraph(ChatState, context_schema=settings, input_schema=Conversation, output_schema=ChatOutput)
    chat.add_node("listen", steps(listen))
    chat.add_node("standalone", steps(standalone), retry_policy=RETRY)
    chat.add_node(graph, technique)
    chat.add_node("reply", steps(reply))
    chat.add_edge(START, "listen")
    chat.add_conditional_edges("listen", lambda state: "standalone" if state["turns"] else graph, ["standalone", graph])
    chat.add_edge("standalone", graph)
    chat.add_edge(graph, "reply")
    chat.add_edge("reply", END)
    return chat


df_rag = build("df_rag").compile(name="df_rag_chat")
dense_rag = build("dense_rag").compile(name="dense_rag_chat")
seakr = build("seakr").compile(name="seakr_chat")
sunar = build("sunar").compile(name="sunar_chat")
