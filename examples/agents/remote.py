"""Use the graphs of a running server (`langgraph dev` in dubito's folder) from another program or machine.

    python examples/agents/remote.py [--server http://127.0.0.1:2024] [--llm vllm:http://127.0.0.1:8000/v1#my-model]

The same server is an MCP server at /mcp, where each graph is a tool.
"""

from __future__ import annotations

import argparse
import json
from urllib.request import Request, urlopen

from langgraph.pregel.remote import RemoteGraph


def tools(server: str) -> list[str]:
    """The names of the tools that an MCP client sees."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}).encode()
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    with urlopen(Request(f"{server}/mcp", body, headers)) as reply:  # noqa: S310 - the caller's own server
        return [tool["name"] for tool in json.load(reply)["result"]["tools"]]


def main() -> None:
    """Call a remote graph like a local one; it can be a node of your own graph too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="http://127.0.0.1:2024")
    parser.add_argument("--llm", default="embedded")
    given = parser.parse_args()
    remote = RemoteGraph("vanilla_rag", url=given.server)
    question = {"question": "Who founded the newspaper that first printed The Salt Road?"}
    result = remote.invoke(question, context={"llm": given.llm, "k": 3})
    print("answer:", result["answer"])
    print("tools:", ", ".join(tools(given.server)))


if __name__ == "__main__":
    main()
