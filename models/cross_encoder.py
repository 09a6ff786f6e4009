"""Natural-language-inference cross-encoders on this machine: any sequence classifier whose labels say entailment."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DubitoError, ModelFault, UserFault
from .encoders import UNLIMITED, load_weights
from .interfaces import LABELS, Judgements

BATCH = 32
"""Pairs that go through the model together (measured: docs/measurements/judges.md)."""

_SPELLINGS = {
    **dict.fromkeys(("entailment", "entail", "entails", "entailed"), "entailment"),
    **dict.fromkeys(("neutral", "notentailment", "nonentailment", "notentailed", "noentailment"), "neutral"),
    **dict.fromkeys(("contradiction", "contradict", "contradicts", "contradictory"), "contradiction"),
}


class CrossEncoderJudge:
    """A cross-encoder for natural-language inference, loaded at the first judgement.

    Premise and hypothesis are the question with the first and the second answer behind it, as in semantic entropy and
    SePer. Texts that are longer together than the model's window are cut, the longer one first.
    """

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub."""
        self._name = name
        self._source = source
        self._model: _Classifier | None = None
        # the model's one thread: torch uses every core for one batch, and loading happens once
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dubito-judge")

    @property
    def name(self) -> str:
        """See `Judge.name`."""
        return self._name

    async def judge(self, question: str, pairs: Sequence[tuple[str, str]]) -> Judgements:
        """See `Judge.judge`; a row is NaN where the model's own numbers are not finite."""
        texts = [(f"{question} {first}", f"{question} {second}") for first, second in pairs]
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._classify, texts)

    def _classify(self, texts: list[tuple[str, str]]) -> Judgements:
        with _naming_faults(self._name):
            if self._model is None:
                self._model = _Classifier(self._source)
            return self._model.probabilities(texts)


class _Classifier:
    """An open model. Only the worker's thread touches it."""

    def __init__(self, source: str) -> None:
        try:
            import torch  # noqa: PLC0415 - seconds of import, an extra
            from transformers import (  # noqa: PLC0415
                AutoConfig,
                AutoModelForSequenceClassification,
                AutoTokenizer,
            )
        except ImportError as error:
            raise UserFault(f"The judge '{source}' needs a package: pip install \"dubito[local]\".") from error

        def load(folder: str, **options: bool) -> tuple[Any, Any]:
            model = AutoModelForSequenceClassification.from_pretrained(
                folder,
                dtype=torch.float32,
                use_safetensors=True,  # nothing is unpickled
                **options,
            )
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
            if tokenizer.pad_token is None:
                raise ValueError("its tokenizer has no padding token")
            return model, tokenizer

        instead = "local folder with a sequence classifier works too: nli:"
        config = load_weights(AutoConfig.from_pretrained, source, "judge", instead)
        # before gigabytes are loaded
        self._columns = label_columns(source, config.id2label)
        model, self._tokenizer = load_weights(load, source, "judge", instead)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.to(self._device).eval()
        self._window = _window(self._tokenizer, config)

    def probabilities(self, texts: list[tuple[str, str]]) -> Judgements:
        """[n, 3], columns as `LABELS`."""
        # pairs of like length in one batch, or the short ones would be padded to the longest
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]) + len(texts[i][1]))
        judged = np.zeros((len(texts), len(LABELS)))
        for start in range(0, len(order), BATCH):
            some = order[start : start + BATCH]
            judged[some] = self._batch([texts[i] for i in some])
        return judged

    def _batch(self, texts: list[tuple[str, str]]) -> Judgements:
        import torch  # noqa: PLC0415 - loaded already

        inputs = self._tokenizer(
            [_encodable(premise) for premise, _ in texts],
            [_encodable(hypothesis) for _, hypothesis in texts],
            padding=True,
            truncation="longest_first",
            max_length=self._window,
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            logits = self._model(**inputs).logits
        shares = logits.double().softmax(-1).cpu().numpy()
        judged = np.zeros((len(texts), len(LABELS)))
        for label, column in self._columns.items():
            judged[:, LABELS.index(label)] = shares[:, column]
        judged[~np.isfinite(shares).all(axis=1)] = np.nan
        return judged


def label_columns(source: str, id2label: Mapping[int, str]) -> dict[str, int]:
    """Which of a classifier's outputs is which of `LABELS`, from its own names for them.

    Any spelling and case; "not entailment" of a model with two labels counts as neutral. Raises `UserFault` where the
    names do not tell.
    """
    columns = {
        _SPELLINGS.get("".join(filter(str.isalpha, str(name).casefold()))): int(i) for i, name in id2label.items()
    }
    if None in columns or len(columns) < len(id2label) or "entailment" not in columns:
        raise UserFault(
            f"The judge '{source}' does not say which of its labels is entailment: its id2label is {dict(id2label)}. "
            "Choose a model for natural-language inference, or name its labels entailment, neutral and contradiction "
            "in the id2label of a local copy's config.json."
        )
    return {label: column for label, column in columns.items() if label is not None}


def weights_identity(source: str) -> str | None:
    """What names the weights in a folder, or those of a hub name that were downloaded; None where there are none.

    The folder, what its config.json says, and name, size and time of every file in it.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        folder = _snapshot(source) or folder
    try:
        config = (folder / "config.json").read_bytes()
        files = sorted((f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in folder.iterdir() if f.is_file())
    except OSError:
        return None
    return json.dumps([str(folder.resolve()), hashlib.sha256(config).hexdigest(), files])


def _snapshot(source: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - an extra

        config = try_to_load_from_cache(source, "config.json")
    except (ImportError, ValueError):  # not installed, or no name that a hub could have
        return None
    return Path(config).parent if isinstance(config, str) else None


def _window(tokenizer: Any, config: Any) -> int | None:  # noqa: ANN401 - transformers' own
    """The most tokens of a pair: the tokenizer's limit, or else the model's."""
    if tokenizer.model_max_length <= UNLIMITED:
        return int(tokenizer.model_max_length)
    positions = getattr(config, "max_position_embeddings", None)
    # some models keep the positions up to that of the padding for themselves
    return int(positions) - 1 - (config.pad_token_id or 0) if positions and positions > 0 else None


def _encodable(text: str) -> str:
    # lone surrogates, which a file may hold, have no UTF-8, and tokenizers refuse them
    return text.encode("utf-8", "replace").decode()


@contextmanager
def _naming_faults(name: str) -> Iterator[None]:
    try:
        yield
    except DubitoError:  # a RuntimeError too, and says already whose fault it is
        raise
    except RuntimeError as fault:  # out of memory, a device that failed
        reason = str(fault).partition("\n")[0].rstrip(".")
        raise ModelFault(name, f"torch failed: {reason}") from fault
