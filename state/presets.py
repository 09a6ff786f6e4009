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
