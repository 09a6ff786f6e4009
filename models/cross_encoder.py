"""Cross-encoders on this machine: a sequence classifier over pairs of texts, as an entailment judge or a re-ranker."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import DubitoError, ModelFault, UserFault
from .encoders import UNLIMITED, load_weights
from .interfaces import LABELS, Judgements

BATCH = 32
"""Pairs that go through the model together (measured: docs/measurements/judges.md)."""

TURN = 256
"""Pairs of several callers that are answered together: giving up takes effect in between."""

Pair = tuple[str, str]

_SPELLINGS = {
    **dict.fromkeys(("entailment", "entail", "entails", "entailed"), "entailment"),
    **dict.fromkeys(("neutral", "notentailment", "nonentailment", "notentailed", "noentailment"), "neutral"),
    **dict.fromkeys(("contradiction", "contradict", "contradicts", "contradictory"), "contradiction"),
}

_RELEVANT = {"relevant", "isrelevant", "yes", "true"}
_IRRELEVANT = {"irrelevant", "notrelevant", "nonrelevant", "isnotrelevant", "no", "false"}


class CrossEncoderJudge:
    """A cross-encoder for natural-language inference, loaded at the first judgement.

    Premise and hypothesis are the question with the first and the second answer behind it, as in semantic entropy and
    SePer. Texts that are longer together than the model's window are cut, the longer one first. Questions that are
    judged while the model is at work wait together and share its next batches; see `_Shared`.
    """

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub."""
        self._name = name
        self._source = source
        self._model: _Classifier | None = None
        self._shared = _Shared(self._classify, "dubito-judge")

    @property
    def name(self) -> str:
        """See `Judge.name`."""
        return self._name

    async def judge(self, question: str, pairs: Sequence[Pair]) -> Judgements:
        """See `Judge.judge`; a row is NaN where the model's own numbers are not finite."""
        return await self._shared.ask([(f"{question} {first}", f"{question} {second}") for first, second in pairs])

    def _classify(self, texts: list[Pair]) -> Judgements:
        with _naming_faults(self._name):
            if self._model is None:
                self._model = _Classifier(self._source)
            return self._model.probabilities(texts)


class CrossEncoderRelevance:
    """A cross-encoder that was trained to tell how well a document answers a query, loaded at the first call.

    Questions that are asked while the model is at work wait together and share its next batches; see `_Shared`.
    """

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub."""
        self._name = name
        self._source = source
        self._model: _Ranker | None = None
        self._shared = _Shared(self._rank, "dubito-reranker")

    async def relevance(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """How relevant each text is, [n] in [0, 1], NaN where the model's own numbers are not finite.

        A query and a text that are longer together than the model's window are cut, the longer one first.
        """
        return await self._shared.ask([(query, text) for text in texts])

    def _rank(self, pairs: list[Pair]) -> NDArray[np.float64]:
        with _naming_faults(self._name):
            if self._model is None:
                self._model = _Ranker(self._source)
            return self._model.relevance(pairs)


class _Shared:
    """A model's one thread: torch uses every core for one batch, and loading happens once.

    Who asks while the model is at work waits, and those who wait share its next batches. A number may differ in its
    last digits with what it shared a batch with.
    """

    def __init__(self, answer: Callable[[list[Pair]], NDArray[np.float64]], thread: str) -> None:
        """answer: n pairs to n rows, on the thread of that name."""
        self._answer = answer
        self._waiting: deque[tuple[list[Pair], Future[NDArray[np.float64]]]] = deque()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=thread)

    async def ask(self, pairs: list[Pair]) -> NDArray[np.float64]:
        """The rows of these pairs."""
        future: Future[NDArray[np.float64]] = Future()
        self._waiting.append((pairs, future))
        self._worker.submit(self._serve)
        return await asyncio.wrap_future(future)

    def _serve(self) -> None:
        """Answer those who wait by now, or the first of them; who is left has a turn of its own behind this one."""
        requests: list[tuple[list[Pair], Future[NDArray[np.float64]]]] = []
        while self._waiting and sum(len(pairs) for pairs, _ in requests) < TURN:
            pairs, future = self._waiting.popleft()
            if future.set_running_or_notify_cancel():  # its caller has not given up
                requests.append((pairs, future))
        if not requests:  # an earlier turn has answered them
            return
        try:
            found = self._answer([pair for pairs, _ in requests for pair in pairs])
        except BaseException as fault:
            for _, future in requests:
                future.set_exception(fault)
            return
        ends = np.cumsum([len(pairs) for pairs, _ in requests])
        for (_, future), shares in zip(requests, np.split(found, ends[:-1]), strict=True):
            future.set_result(shares)


class _PairModel:
    """An open sequence classifier of pairs of texts. Only its worker's thread touches it."""

    what: ClassVar[str]
    """What faults call it."""

    prefix: ClassVar[str]
    """How names of such models begin."""

    def __init__(self, source: str) -> None:
        try:
            import torch  # noqa: PLC0415 - seconds of import, an extra
            from transformers import (  # noqa: PLC0415
                AutoConfig,
                AutoModelForSequenceClassification,
                AutoTokenizer,
            )
        except ImportError as error:
            raise UserFault(f"The {self.what} '{source}' needs a package: pip install \"dubito[local]\".") from error

        def load(folder: str, **options: bool) -> tuple[Any, Any]:
            model, report = AutoModelForSequenceClassification.from_pretrained(
                folder,
                dtype=torch.float32,
                use_safetensors=True,  # nothing is unpickled
                output_loading_info=True,
                **options,
            )
            if missing := sorted(report["missing_keys"]):
                # the library would draw them by chance
                raise ValueError(f"its file has no weights for {', '.join(missing)}")
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
            if tokenizer.pad_token is None:
                raise ValueError("its tokenizer has no padding token")
            return model, tokenizer

        instead = f"local folder with a sequence classifier works too: {self.prefix}"
        config = load_weights(AutoConfig.from_pretrained, source, self.what, instead)
        # before gigabytes are loaded
        self._read_labels(source, config.id2label)
        model, self._tokenizer = load_weights(load, source, self.what, instead)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.to(self._device).eval()
        self._window = _window(self._tokenizer, config)

    def _read_labels(self, source: str, id2label: Mapping[int, str]) -> None:
        """Learn which output is which; `UserFault` for a model that does something else."""
        raise NotImplementedError

    def logits(self, texts: list[Pair]) -> NDArray[np.float64]:
        """[n, outputs of the model], n ≥ 1."""
        # pairs of like length in one batch, or the short ones would be padded to the longest
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]) + len(texts[i][1]))
        batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        rows = np.concatenate([self._batch([texts[i] for i in some]) for some in batches])
        logits = np.empty_like(rows)
        logits[order] = rows
        return logits

    def _batch(self, texts: list[Pair]) -> NDArray[np.float64]:
        import torch  # noqa: PLC0415 - loaded already

        inputs = self._tokenizer(
            [_encodable(first) for first, _ in texts],
            [_encodable(second) for _, second in texts],
            padding=True,
            truncation="longest_first",
            max_length=self._window,
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            logits: NDArray[np.float64] = self._model(**inputs).logits.double().cpu().numpy()
        return logits


class _Classifier(_PairModel):
    """A classifier whose labels say entailment."""

    what = "judge"
    prefix = "nli:"

    def _read_labels(self, source: str, id2label: Mapping[int, str]) -> None:
        self._columns = label_columns(source, id2label)

    def probabilities(self, texts: list[Pair]) -> Judgements:
        """[n, 3], columns as `LABELS`."""
        judged = np.zeros((len(texts), len(LABELS)))
        if not texts:
            return judged
        shares = _softmax(self.logits(texts))
        for label, column in self._columns.items():
            judged[:, LABELS.index(label)] = shares[:, column]
        judged[~np.isfinite(shares).all(axis=1)] = np.nan
        return judged


class _Ranker(_PairModel):
    """A classifier whose one output, or one of two, is relevance."""

    what = "re-ranker"
    prefix = "cross:"

    def _read_labels(self, source: str, id2label: Mapping[int, str]) -> None:
        self._column = relevance_column(source, id2label)

    def relevance(self, texts: list[Pair]) -> NDArray[np.float64]:
        """[n] in [0, 1], n ≥ 1; NaN where the model's own numbers are not finite."""
        logits = self.logits(texts)
        if logits.shape[1] == 1:
            # the sigmoid: the share of this logit beside one of 0
            logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
        shares: NDArray[np.float64] = _softmax(logits)[:, self._column]
        return shares


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row; NaN throughout a row with a number that is not finite."""
    sound = np.where(np.isfinite(logits).all(axis=1, keepdims=True), logits, np.nan)
    powers = np.exp(sound - sound.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def relevance_column(source: str, id2label: Mapping[int, str]) -> int:
    """Which share says relevant: of the two labels of a classifier, or, of one label, that of its sigmoid (1).

    One output may have any name. Two are told apart by theirs (relevant and irrelevant, yes and no, true and false, any
    case); where they have none but LABEL_0 and LABEL_1, the second is relevant, as is the custom. Raises `UserFault`
    for other names and for more labels.
    """
    if len(id2label) == 1:
        return 1
    names = {"".join(filter(str.isalnum, str(name).casefold())): int(i) for i, name in id2label.items()}
    if len(id2label) == 2:
        if set(names) == {"label0", "label1"}:
            return names["label1"]
        if len(said := _RELEVANT & set(names)) == 1 and len(_IRRELEVANT & set(names)) == 1:
            return names[said.pop()]
    raise UserFault(
        f"The re-ranker '{source}' does not say which of its labels is relevance: its id2label is {dict(id2label)}. "
        "Choose a model that was trained to rank passages (one for natural-language inference is none), or name its "
        "two labels relevant and irrelevant in the id2label of a local copy's config.json."
    )


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
