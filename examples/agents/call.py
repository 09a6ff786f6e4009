"""Call a graph from your own code: as one call, step by step, and several questions at once.

python examples/agents/call.py [--llm vllm:http://127.0.0.1:8000/v1#my-model]
"""

from __future__ import annotations

import argparse
import asyncio

from dubito import vanilla_rag
from dubito.state.vanilla_rag import VanillaRagContext

QUESTION = "Who founded the newspaper that first printed The Salt Road?"


async def several(context: VanillaRagContext) -> list[str]:
    """Two questions at once."""
    questions = [QUESTION, "Which river does the Salt Road follow?"]
    results = await asyncio.gather(*(vanilla_rag.ainvoke({"question": text}, context=context) for text in questions))
    return [result["answer"] for result in results]


def main() -> None:
    """Print the result of each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llm", default="embedded")
    context = VanillaRagContext(llm=parser.parse_args().llm, k=3)

    result = vanilla_rag.invoke({"question": QUESTION}, context=context)
    print("answer:", result["answer"])
    print("from:", ", ".join(chunk["title"] for chunk in result["evidence"]))
    print("calls:", result["usage"]["calls"])

    for update in vanilla_rag.stream({"question": QUESTION}, context=context, stream_mode="updates"):
        print("step:", next(iter(update)))

    print("at once:", asyncio.run(several(context)))


if __name__ == "__main__":
    main()
