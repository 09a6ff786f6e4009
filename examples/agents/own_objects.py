"""Use your own objects: a LangChain chat model, embeddings, and a vector store or retriever.

    pip install langchain-openai
    python examples/agents/own_objects.py [--url http://127.0.0.1:8000/v1 --model my-model]

Without a server the chat model always gives the same reply. That is enough to see how the parts fit.
"""

from __future__ import annotations

import argparse

from dubito.graphs import vanilla_rag
from dubito.resources.resources import Resources
from dubito.state.vanilla_rag import VanillaRagContext
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

NOTES = {
    "The river": "The Lune rises in the fells and reaches the sea near Lancaster.",
    "The bridge": "Devil's Bridge crosses the Lune at Kirkby Lonsdale.",
}


def main() -> None:
    """Ask one question over two notes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="")
    parser.add_argument("--model", default="")
    given = parser.parse_args()
    model: BaseChatModel = FakeListChatModel(responses=["the Lune"])
    if given.url:
        model = ChatOpenAI(base_url=given.url, model=given.model, api_key=SecretStr("none"))
    embeddings = DeterministicFakeEmbedding(size=64)
    store = InMemoryVectorStore(embeddings)
    store.add_documents([Document(text, metadata={"title": title}) for title, text in NOTES.items()])

    # a retriever, such as store.as_retriever(), works too
    mine = Resources(llm=model, encoder=embeddings, retriever=store)
    graph = vanilla_rag.build(mine).compile()
    result = graph.invoke({"question": "Which river flows past Lancaster?"}, context=VanillaRagContext(k=2))
    print(result["answer"])
    print("from:", sorted(chunk["title"] for chunk in result["evidence"]))


if __name__ == "__main__":
    main()
