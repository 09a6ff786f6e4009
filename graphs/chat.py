"""Any graph as a chat, for Studio's chat mode and chat front ends: messages in, the same messages and the answer out.

    listen ─┬─────────────────┬─> GRAPH ──> reply
            └──> standalone ──┘

`standalone` rewrites a follow-up question ("and when was she born?") so that it can be understood without the
conversation. This module has the chat form of each graph under the graph's name: `chat.df_rag`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.graph import END, START

from ..nodes.chat import listen, reply, standalone
from ..resources.resources import Resources
from ..state.chat import ChatOutput, ChatState, Conversation
from .registry import CHAT, context_type, graph_named, graph_names, takes_a_plain_question
from .wiring import ANSWERS_FOR_PARENT, Machine

if TYPE_CHECKING:
    from .registry import Graph

    def __getattr__(name: str) -> Graph: ...


def build(graph: str, resources: Resources | None = None) -> Machine[ChatState, Any, Conversation, ChatOutput]:
    """Wire the chat form of a graph. The context is that of the graph; `resources` holds live objects as in the graph.

    Raises `UserFault` for an unknown graph.
    """
    technique = graph_named(graph, resources)
    chat = Machine(ChatState, context_type(technique), Conversation, ChatOutput, resources)
    chat.add_steps(listen, standalone, reply)
    chat.add_node(graph, technique.with_config(tags=[ANSWERS_FOR_PARENT]))
    chat.add_edge(START, "listen")
    chat.add_conditional_edges("listen", lambda state: "standalone" if state["turns"] else graph, ["standalone", graph])
    chat.add_path("standalone", graph, "reply", END)
    return chat


def chat_form(name: str, resources: Resources | None = None) -> Graph:
    """The compiled chat form of one graph; raises as `build`."""
    return build(name, resources).compile(name=name + CHAT)


def chat_forms() -> dict[str, Graph]:
    """The compiled chat form of every graph that takes a plain question, by the graph's name."""
    names = (name for name in graph_names() if takes_a_plain_question(graph_named(name)))
    return {name: chat_form(name) for name in names}


globals().update(chat_forms())  # `langgraph.json` names each as dubito.graphs.chat:NAME
