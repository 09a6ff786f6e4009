"""Talk with a graph: follow-up questions are put so that they stand alone before anything is looked up.

python examples/agents/chat.py [--graph dense_rag] [--llm vllm:http://127.0.0.1:8000/v1#my-model]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dubito.graphs import chat
from langgraph.checkpoint.memory import InMemorySaver


def main() -> None:
    """Answer each line that is typed, or piped in; the thread remembers the conversation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="vanilla_rag")
    parser.add_argument("--llm", default="embedded")
    given = parser.parse_args()
    graph = chat.build(given.graph).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "1"}}
    for line in sys.stdin:
        said: Any = {"messages": [{"role": "user", "content": line.strip()}]}
        found = graph.invoke(said, config, context={"llm": given.llm, "k": 3})
        print(f"({found['question']})\n{found['messages'][-1].text}", flush=True)


if __name__ == "__main__":
    main()
