"""Give a graph to an agent as a tool: the agent's model gets the answer, your program the evidence and uncertainty.

    pip install langchain langchain-openai
    python examples/agents/tool.py --url http://127.0.0.1:8000/v1 --model my-model

The agent's model must be able to call tools: start vLLM with --enable-auto-tool-choice and --tool-call-parser.
"""

from __future__ import annotations

import argparse
from typing import Any

from dubito.graphs.tool import as_tool
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr


def main() -> None:
    """Let an agent ask; print the tool's answer and evidence, and the agent's reply."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", required=True)
    given = parser.parse_args()
    library = as_tool(
        "vanilla_rag",
        {"llm": f"openai:{given.url}#{given.model}", "k": 3},
        name="library",
        description="Answers a question from the town library's articles. Ask one full question.",
    )
    model = ChatOpenAI(base_url=given.url, model=given.model, api_key=SecretStr("none"))
    agent = create_agent(model, [library])
    turn: Any = {"role": "user", "content": "Who founded the newspaper that printed The Salt Road?"}
    messages = agent.invoke({"messages": [turn]})["messages"]
    for message in messages:
        if isinstance(message, ToolMessage):
            print("tool:", message.content)
            print("from:", ", ".join(chunk["title"] for chunk in message.artifact["evidence"]))
    print("agent:", messages[-1].text)


if __name__ == "__main__":
    main()
