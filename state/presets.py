"""Model choices that several techniques share in their presets."""

from __future__ import annotations

from collections.abc import Mapping

LOCAL_SERVER = "http://127.0.0.1:8000/v1"
STATES_SERVER = "http://127.0.0.1:8001/v1"
"""Where `dubito serve --hidden-states` shows hidden states."""

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
        "graph_encoder": "colbert:colbert-ir/colbertv2.0",
        "reranker": "cross:cross-encoder/mmarco-mMiniLMv2-L12-H384-v1",
        "judge": "nli:FacebookAI/roberta-large-mnli",
    },
}
"""SUNAR sections 3.2 and 4. ColBERTv2 chooses a document's neighbours among those that the encoder finds."""

COT_MODELS: Mapping[str, Mapping[str, str]] = {
    "embedded": {"llm": "embedded", "encoder": "embedded", "chunker": "words:100"},
    "paper": {
        "llm": f"vllm:{LOCAL_SERVER}#meta-llama/Llama-2-7b-chat-hf",
        "encoder": "embedded",
        "chunker": "words:100",
    },
}
"""The baselines of SeaKR, section 4.1.3: Llama-2-7b-chat, passages of 100 words, for which no encoder is needed."""

IRCOT_MODELS = {preset: {**models, "first_stage": "bm25"} for preset, models in COT_MODELS.items()}
"""Those that search: by BM25."""

SEAKR_MODELS: Mapping[str, Mapping[str, str]] = {
    "embedded": {**IRCOT_MODELS["embedded"], "judge": "embedded"},
    "paper": {
        **IRCOT_MODELS["paper"],
        "llm": f"vllm:{LOCAL_SERVER}#meta-llama/Llama-2-7b-chat-hf&states={STATES_SERVER}",
        "judge": "llm",
    },
}
"""SeaKR section 4.1.3; hidden states come from a second server. The judge serves estimators beyond the paper's."""

SEPER_MODELS: Mapping[str, Mapping[str, str]] = {
    "embedded": {"llm": "embedded", "encoder": "embedded", "chunker": "words:100", "judge": "embedded"},
    "paper": {
        "llm": f"vllm:{LOCAL_SERVER}#meta-llama/Llama-2-7b-chat-hf",
        "encoder": "st:BAAI/bge-base-en-v1.5",
        "chunker": "words:100",
        "judge": "nli:microsoft/deberta-v2-xlarge-mnli",
    },
}
"""SePer sections 4.1 and D.4, over passages of 100 words; BGE is one of the retrievers of its appendix C."""
