"""Use a graph as a node of your own graph: with a checkpointer, with settings, with streamed steps.

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
    """The keys of the parent graph. `question`, `answer` and `evidence` are also keys of the subgraph."""

    ticket: str
    question: str
    answer: str
    evidence: list[dict[str, Any]]
    letter: str


def read(state: Support) -> Support:
    """Take the question out of a ticket."""
    return {"question": state["ticket"].removeprefix("Ticket: ")}


def write(state: Support) -> Support:
    """Write a letter with the answer."""
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
    """Stream the steps for one ticket, then print the letter from the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="embedded")
    given = parser.parse_args()
    graph = build().compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    ticket: Support = {"ticket": "Ticket: Who founded the newspaper that first printed The Salt Road?"}
    # the subgraph reads its own settings from the dict; the parent may add further keys
    context: Any = {"llm": given.llm, "k": 3, "evaluator": "choice"}
    for where, update in graph.stream(ticket, config, context=context, stream_mode="updates", subgraphs=True):
        print("  " * len(where) + next(iter(update)))
    print(graph.get_state(config).values["letter"])


if __name__ == "__main__":
    main()
