"""A BERT of 2 layers and 16 dimensions with random weights, for tests of models that are built on one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def save_bert(
    kind: str,
    folder: Path,
    words: Sequence[str],
    *,
    window: int = 64,
    seed: int = 0,
    **config: Any,
) -> Any:
    """Save a model with its tokenizer, and return it.

    kind: its class in transformers ("BertModel"); words: the vocabulary; config: more of transformers' `BertConfig`.
    """
    import torch  # noqa: PLC0415
    import transformers  # noqa: PLC0415

    folder.mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    tokenizer: Any = transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=window)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    model = getattr(transformers, kind)(
        transformers.BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=window,
            **config,
        )
    )
    model.save_pretrained(folder)
    return model
