"""BERTScore (Zhang et al. 2020): how well the tokens of two texts match under a language model's hidden states."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cross_encoder import encodable, window_of
from .local_weights import OneThread, load_weights, local_extra, torch_faults

TokenVectors = NDArray[np.float64]
"""A text's tokens without the special ones, [T, d], each of length 1."""

BATCH = 32
"""Texts that the model reads at once."""


class BertScorer:
    """A language model whose hidden states are compared, loaded at the first call."""

    def __init__(self, source: str, layer: int = 0) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub.

        layer: whose hidden states, from 1; 0: the last one. Zhang et al. take layer 17 of roberta-large.
        """
        self.name = source
        self._model = OneThread(lambda: _TokenModel(source, layer), "dubito-bert-score")

    async def open(self) -> None:
        """Load the model; `UserFault` if it cannot be loaded."""
        await self._model.run(lambda _: None)

    async def f1(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """BERTScore's F1 of each pair (answer, reference), −1 to 1, nearly always above 0; without idf and rescaling.

        0 for a text without tokens. Each distinct text is read once. `UserFault` if the model cannot be loaded.
        """
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        if not texts:
            return []
        vectors = dict(zip(texts, await self._model.run(lambda model: model.vectors(texts)), strict=True))
        return [greedy_f1(vectors[answer], vectors[reference]) for answer, reference in pairs]


def greedy_f1(answer: TokenVectors, reference: TokenVectors) -> float:
    """F1 of greedy matching: each token's highest cosine with the other text's tokens, averaged (Zhang et al., eq. 1).

    answer: [T, d], reference: [R, d], rows of length 1. 0 if one has no tokens.
    """
    if not len(answer) or not len(reference):
        return 0.0
    cosines = answer @ reference.T
    precision, recall = float(cosines.max(axis=1).mean()), float(cosines.max(axis=0).mean())
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


class _TokenModel:
    """A loaded model and its tokenizer. Only its thread uses it."""

    def __init__(self, source: str, layer: int) -> None:
        with local_extra("BERTScore model", source):
            import torch  # noqa: PLC0415 - seconds of import, an extra
            from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415

        def load(folder: str, **options: bool) -> tuple[Any, Any]:
            model: Any = AutoModel.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, **options)
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
            if not 0 <= layer <= model.config.num_hidden_layers:
                raise ValueError(f"it has {model.config.num_hidden_layers} layers, and no layer {layer}")
            return model, tokenizer

        instead = "local folder with a language model works too: --metric bertscore:model="
        model, self._tokenizer = load_weights(load, source, "BERTScore model", instead)
        self._name, self._layer = source, layer or -1
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.to(self._device).eval()
        self._window = window_of(self._tokenizer, model.config)

    def vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """The token vectors of each text."""
        with torch_faults(self._name):
            return [row for start in range(0, len(texts), BATCH) for row in self._batch(texts[start : start + BATCH])]

    def _batch(self, texts: Sequence[str]) -> list[TokenVectors]:
        import torch  # noqa: PLC0415 - already loaded

        inputs = self._tokenizer(
            [encodable(text) for text in texts],
            padding=True,
            truncation=True,
            max_length=self._window,
            split_special_tokens=True,
            return_special_tokens_mask=True,
            return_tensors="pt",
        )
        special = inputs.pop("special_tokens_mask").bool() | ~inputs["attention_mask"].bool()
        with torch.inference_mode():
            states = self._model(**inputs.to(self._device), output_hidden_states=True).hidden_states[self._layer]
        rows: TokenVectors = torch.nn.functional.normalize(states.double(), dim=-1).cpu().numpy()
        return [row[kept] for row, kept in zip(rows, ~special.numpy(), strict=True)]
