"""Model choices that several techniques share in their presets."""

from __future__ import annotations

from collections.abc import Mapping

LOCAL_SERVER = "http://127.0.0.1:8000/v1"

DF_RAG_MODELS: Mapping[str, Mapping[str, str]] = {
    "embedded": {"llm": "embedded", "encoder": "embedded", "chunker": "words:100"},
    "paper": {
        "llm": f"vllm:{LOCAL_SERVER}#meta-llama/Llama-3.3-70B-Instruct",
        "encoder": "st:sentence-transformers/multi-qa-mpnet-base-cos-v1",
        "chunker": "words:300",
    },
}
"""DF-RAG section 3.5: Llama 3.3 70B, multi-qa-mpnet-base-cos-v1, windows of 100, 200 or 300 words."""

DENSE_MODELS: Mapping[str, Mapping[str, str]] = {
    "embedded": {"llm": "embedded", "encoder": "embedded", "chunker": "tokens:128/16", "judge": "embedded"},
    "paper": {
        "llm": f"vllm:{LOCAL_SERVER}#meta-llama/Llama-3.1-8B-Instruct",
        "encoder": "st:WhereIsAI/UAE-Large-V1",
        "chunker": "tokens:512/64",
        "judge": "llm",
    },
}
"""DENSE section 6.1 and appendix G. The embedded models are small and slow on a CPU, and so are their chunks."""

SUNAR_MODELS: Mapping[str, Mapping[str, str]] = {
    "embedded": {
        "llm": "embedded",
        "encoder": "embedded",
        "chunker": "words:100",
        "first_stage": "bm25",
        "graph_encoder": "embedded",
        "reranker": "embedded",
        "judge": "embedded",
    },
    "paper": {
        "llm": f"vllm:{LOCAL_SERVER}#meta-llama/Llama-3.1-8B-Instruct",
        "encoder": "st:sentence-transformers/multi-qa-mpnet-base-cos-v1",
        "chunker": "words:100",
        "first_stage": "splade:naver/splade_v2_distil",
        "graph_encoder": "st:sentence-transformers/multi-qa-mpnet-base-cos-v1",
        "reranker": "cross:cross-encoder/mmarco-mMiniLMv2-L12-H384-v1",
        "judge": "nli:FacebookAI/roberta-large-mnli",
    },
}
"""SUNAR sections 3.2 and 4. Its document graph is ColBERTv2's, here a dense encoder's."""
