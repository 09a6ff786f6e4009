"""Cross-encoders on this machine: a sequence classifier over pairs of texts, as an entailment judge or a re-ranker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..concurrency import OfProcess
from ..errors import UserFault
from .interfaces import LABELS, Judgements
from .local_weights import UNLIMITED, load_weights, local_extra, model_thread, torch_faults

BATCH = 32
"""Pairs in one batch (measured: docs/measurements/judges.md)."""

TURN = 256
"""Pairs of several callers in one turn; cancellation takes effect between turns."""

Pair = tuple[str, str]

IdToLabel = Mapping[int, str]
"""The names of a classifier's outputs, in its config.json."""

Rows = NDArray[np.float64]
"""The result for n pairs, [n] or [n, 3]."""

_Waiting = deque[tuple[list[Pair], Future[Rows]]]
"""The requests that nothing has been done for yet."""

OfLogits = Callable[[NDArray[np.float64]], Rows]

_SPELLINGS = {
    **dict.fromkeys(("entailment", "entail", "entails", "entailed"), "entailment"),
    **dict.fromkeys(("neutral", "notentailment", "nonentailment", "notentailed", "noentailment"), "neutral"),
    **dict.fromkeys(("contradiction", "contradict", "contradicts", "contradictory"), "contradiction"),
}

_RELEVANT = {"relevant", "isrelevant", "yes", "true"}
_IRRELEVANT = {"irrelevant", "notrelevant", "nonrelevant", "isnotrelevant", "no", "false"}


class CrossEncoderJudge:
    """A cross-encoder for natural-language inference, loaded at the first judgement.

    Premise and hypothesis are the question followed by the first and by the second answer, as in semantic entropy and
    SePer. A pair that exceeds the model's window is truncated, the longer text first. Concurrent callers share batches;
    see `_Shared`.
    """

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub."""
        self.name = name
        self._shared = _Shared(name, lambda: _PairModel(source, "judge", "nli:", _judging))

    async def judge(self, question: str, pairs: Sequence[Pair]) -> Judgements:
        """See `Judge.judge`; a row is NaN where the model's logits are not finite."""
        if not pairs:
            return np.zeros((0, len(LABELS)))
        return await self._shared.ask([(f"{question} {first}", f"{question} {second}") for first, second in pairs])


class CrossEncoderRelevance:
    """A cross-encoder trained to rank documents for a query, loaded at the first call.

    Concurrent callers share batches; see `_Shared`.
    """

    def __init__(self, name: str, source: str) -> None:
        """source: a folder with the model, or its name on the Hugging Face hub."""
        self._shared = _Shared(name, lambda: _PairModel(source, "re-ranker", "cross:", _ranking))

    async def relevance(self, query: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """The relevance of each of n ≥ 1 texts, [n] in [0, 1], NaN where the model's logits are not finite.

        A pair of query and text that exceeds the model's window is truncated, the longer text first.
        """
        return await self._shared.ask([(query, text) for text in texts])


class _Shared:
    """A model on one thread, because torch uses every core for one batch; it is loaded at the first request.

    Requests that arrive while the model works share its next batches. So the last digits of a score can depend on the
    other requests.
    """

    def __init__(self, name: str, load: Callable[[], _PairModel]) -> None:
        """name: for messages; load: loads the model, on its thread."""
        self._name = name
        self._load = load
        self._model: _PairModel | None = None
        # a forked child must not answer its parent's callers
        self._worker = OfProcess(lambda: (_Waiting(), model_thread("dubito-cross-encoder")))

    async def ask(self, pairs: list[Pair]) -> Rows:
        """The rows of these pairs."""
        future: Future[Rows] = Future()
        waiting, thread = self._worker.get()
        waiting.append((pairs, future))
        thread.submit(self._serve, waiting)
        return await asyncio.wrap_future(future)

    def _serve(self, waiting: _Waiting) -> None:
        """Score waiting requests up to `TURN` pairs; every request has submitted a turn, so none is left over."""
        requests: list[tuple[list[Pair], Future[Rows]]] = []
        while waiting and sum(len(pairs) for pairs, _ in requests) < TURN:
            pairs, future = waiting.popleft()
            if future.set_running_or_notify_cancel():  # not cancelled by its caller
                requests.append((pairs, future))
        if not requests:  # an earlier turn has scored them
            return
        try:
            with torch_faults(self._name):
                if self._model is None:
                    self._model = self._load()
                rows = self._model.rows([pair for pairs, _ in requests for pair in pairs])
        except BaseException as fault:
            for _, future in requests:
                future.set_exception(fault)
            return
        ends = np.cumsum([len(pairs) for pairs, _ in requests])
        for (_, future), shares in zip(requests, np.split(rows, ends[:-1]), strict=True):
            future.set_result(shares)


class _PairModel:
    """A loaded sequence classifier for pairs of texts. Only its worker's thread uses it."""

    def __init__(self, source: str, kind: str, prefix: str, read_labels: Callable[[str, IdToLabel], OfLogits]) -> None:
        """kind: the kind of model, for messages; prefix: of the names of such models.

        read_labels: finds the meaning of each output, and returns the function that turns logits into the rows of the
        result; `UserFault` for a model with other outputs.
        """
        with local_extra(kind, source):
            import torch  # noqa: PLC0415 - seconds of import, an extra
            from transformers import (  # noqa: PLC0415
                AutoConfig,
                AutoModelForSequenceClassification,
                AutoTokenizer,
            )

        def load(folder: str, **options: bool) -> tuple[Any, Any]:
            model, report = AutoModelForSequenceClassification.from_pretrained(
                folder,
                dtype=torch.float32,
                use_safetensors=True,  # nothing is unpickled
                output_loading_info=True,
                **options,
            )
            if missing := sorted(report["missing_keys"]):
                # the library would initialise them at random
                raise ValueError(f"its file has no weights for {', '.join(missing)}")
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, **options)
            if tokenizer.pad_token is None:
                raise ValueError("its tokenizer has no padding token")
            return model, tokenizer

        instead = f"local folder with a sequence classifier works too: {prefix}"
        config = load_weights(AutoConfig.from_pretrained, source, kind, instead)
        # before the weights are loaded
        self._of_logits = read_labels(source, config.id2label)
        model, self._tokenizer = load_weights(load, source, kind, instead)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model = model.to(self._device).eval()
        self._window = window_of(self._tokenizer, config)

    def rows(self, texts: list[Pair]) -> Rows:
        """The result for each of n ≥ 1 pairs."""
        # pairs of similar length share a batch, which needs less padding
        order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]) + len(texts[i][1]))
        batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        rows = np.concatenate([self._batch([texts[i] for i in batch]) for batch in batches])
        logits = np.empty_like(rows)
        logits[order] = rows
        return self._of_logits(logits)

    def _batch(self, texts: list[Pair]) -> NDArray[np.float64]:
        import torch  # noqa: PLC0415 - already loaded

        inputs = self._tokenizer(
            [encodable(first) for first, _ in texts],
            [encodable(second) for _, second in texts],
            padding=True,
            truncation="longest_first",
            max_length=self._window,
            split_special_tokens=True,  # a text that holds [SEP] must not end itself
            return_tensors="pt",
        ).to(self._device)
        with torch.inference_mode():
            logits: NDArray[np.float64] = self._model(**inputs).logits.double().cpu().numpy()
        return logits


def _judging(source: str, id2label: IdToLabel) -> OfLogits:
    """Logits to label probabilities [n, 3], columns as `LABELS`."""
    columns = label_columns(source, id2label)

    def probabilities(logits: NDArray[np.float64]) -> Judgements:
        shares = _softmax(logits)
        judged = np.zeros((len(logits), len(LABELS)))
        for label, column in columns.items():
            judged[:, LABELS.index(label)] = shares[:, column]
        judged[~np.isfinite(shares).all(axis=1)] = np.nan
        return judged

    return probabilities


def _ranking(source: str, id2label: IdToLabel) -> OfLogits:
    """Logits to relevance [n]."""
    column = relevance_column(source, id2label)

    def relevance(logits: NDArray[np.float64]) -> NDArray[np.float64]:
        if logits.shape[1] == 1:
            # the sigmoid of the logit is its softmax beside a logit of 0
            logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
        shares: NDArray[np.float64] = _softmax(logits)[:, column]
        return shares

    return relevance


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row; all NaN in a row with a value that is not finite."""
    finite = np.where(np.isfinite(logits).all(axis=1, keepdims=True), logits, np.nan)
    powers = np.exp(finite - finite.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return shares


def relevance_column(source: str, id2label: IdToLabel) -> int:
    """The column of relevance among a classifier's two probabilities; 1 for a single output, which is a sigmoid.

    A single output may have any name. Two outputs are identified by their names (relevant and irrelevant, yes and no,
    true and false, in any case); by convention LABEL_1 is relevant beside LABEL_0. `UserFault` for other labels.
    """
    if len(id2label) == 1:
        return 1
    names = {"".join(filter(str.isalnum, str(name).casefold())): int(i) for i, name in id2label.items()}
    if len(id2label) == 2:
        if set(names) == {"label0", "label1"}:
            return names["label1"]
        if len(relevant := _RELEVANT & set(names)) == 1 and len(_IRRELEVANT & set(names)) == 1:
            return names[relevant.pop()]
    raise UserFault(
        f"The labels of the re-ranker '{source}' do not name relevance: its id2label is {dict(id2label)}. "
        "Choose a model that was trained to rank passages, not one for natural-language inference, or name its two "
        "labels relevant and irrelevant in the id2label of a local copy's config.json."
    )


def label_columns(source: str, id2label: IdToLabel) -> dict[str, int]:
    """The output column of each of `LABELS`, by the classifier's own label names.

    Spelling and case may vary; "not entailment" of a model with two labels counts as neutral. `UserFault` for other
    names.
    """
    columns = {
        _SPELLINGS.get("".join(filter(str.isalpha, str(name).casefold()))): int(i) for i, name in id2label.items()
    }
    if None in columns or len(columns) < len(id2label) or "entailment" not in columns:
        raise UserFault(
            f"The labels of the judge '{source}' do not name entailment: its id2label is {dict(id2label)}. "
            "Choose a model for natural-language inference, or name its labels entailment, neutral and contradiction "
            "in the id2label of a local copy's config.json."
        )
    return {label: column for label, column in columns.items() if label is not None}


def window_of(tokenizer: Any, config: Any) -> int | None:  # noqa: ANN401 - transformers' own
    """The most tokens of an input: the tokenizer's limit, else the model's."""
    if tokenizer.model_max_length <= UNLIMITED:
        return int(tokenizer.model_max_length)
    positions = getattr(config, "max_position_embeddings", None)
    # some models reserve the positions up to the padding id
    return int(positions) - 1 - (config.pad_token_id or 0) if positions and positions > 0 else None


def encodable(text: str) -> str:
    """The text without lone surrogates, which a file may hold: they have no UTF-8 and tokenizers refuse them."""
    return text.encode("utf-8", "replace").decode()
