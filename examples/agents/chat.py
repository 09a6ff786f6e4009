"""Talk with a graph: the model rewrites a follow-up question so that it can be understood alone.

python examples/agents/chat.py [--graph dense_rag] [--llm vllm:http://127.0.0.1:8000/v1#my-model]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dubito.graphs import chat
from langgraph.checkpoint.memory import InMemorySaver


def main() -> None:
    """Answer each line of standard input; the thread remembers the conversation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="vanilla_rag")
    parser.add_argument("--llm", default="embedded")
    given = parser.parse_args()
    graph = chat.build(given.graph).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    for line in sys.stdin:
        message: Any = {"messages": [{"role": "user", "content": line.strip()}]}
        result = graph.invoke(message, config, context={"llm": given.llm, "k": 3})
        print(f"({result['question']})\n{result['messages'][-1].text}", flush=True)


if __name__ == "__main__":
    main()
