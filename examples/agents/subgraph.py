"""Put a graph into your own: with a checkpointer, its settings passed through, its steps streaming.

python examples/agents/subgraph.py [--llm vllm:http://127.0.0.1:8000/v1#my-model]
"""

from __future__ import annotations

import argparse
from typing import Any

from dubito import df_rag
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict


class Support(TypedDict, total=False):
    """The keys of the parent graph; `question`, `answer` and `evidence` are the subgraph's too."""

    ticket: str
    question: str
    answer: str
    evidence: list[dict[str, Any]]
    letter: str


def read(state: Support) -> Support:
    """Take the question out of a ticket."""
    return {"question": state["ticket"].removeprefix("Ticket: ")}


def write(state: Support) -> Support:
    """Put the answer into a letter."""
    sources = ", ".join(chunk["title"] for chunk in state["evidence"])
    return {"letter": f"Dear reader,\n{state['answer']}\n(from {sources})"}


def build() -> StateGraph[Support, Any, Support, Support]:
    """read ──> df_rag ──> write."""
    graph = StateGraph(Support)
    graph.add_node("read", read)
    graph.add_node("df_rag", df_rag)
    graph.add_node("write", write)
    graph.add_edge(START, "read")
    graph.add_edge("read", "df_rag")
    graph.add_edge("df_rag", "write")
    graph.add_edge("write", END)
    return graph


def main() -> None:
    """Stream one ticket, then look at what the checkpointer kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="embedded")
    given = parser.parse_args()
    graph = build().compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    ticket: Support = {"ticket": "Ticket: Who founded the newspaper that first printed The Salt Road?"}
    # a plain dict is read by the subgraph, whose settings it names; the parent may have more keys in it
    context: Any = {"llm": given.llm, "k": 3, "evaluator": "choice"}
    for where, update in graph.stream(ticket, config, context=context, stream_mode="updates", subgraphs=True):
        print("  " * len(where) + next(iter(update)))
    print(graph.get_state(config).values["letter"])


if __name__ == "__main__":
    main()
