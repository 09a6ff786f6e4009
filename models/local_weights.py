"""Weights on this machine: found, loaded without output on the terminal, and used on one thread."""

import asyncio
import logging
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from hashlib import sha256
from importlib import import_module
from os import SEEK_END
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Generic, TypeVar, cast

from ..concurrency import OfProcess
from ..errors import DubitoError, ModelFault, UserFault, needs_extra
from ..json_files import open_file

T = TypeVar("T")
Model = TypeVar("Model")

CONFIGS = ("modules.json", "config.json")
"""One of them is in every model's folder."""

WEIGHTS = {".safetensors", ".bin", ".json", ".txt", ".model"}
"""The files that decide what a model computes; the last two have the words of some tokenizers."""

BLOCK, BLOCKS = 2**12, 2**10
"""The bytes of a block of a file that is looked at, and about how many blocks are looked at; small files are whole."""

HEADER = 2**27
"""The most bytes of a header of safetensors, which has at most 100 million."""

_BEGINS = re.compile(rb'"data_offsets"\s*:\s*\[\s*(\d{1,15})\b')

UNLIMITED = 1_000_000
"""Tokenizers without a limit report a number above this."""


class OneThread(Generic[Model]):
    """A model that is loaded at its first use and used on one thread, because torch uses every core for one batch.

    A forked child uses its parent's weights on a thread of its own.
    """

    def __init__(self, load: Callable[[], Model], thread: str) -> None:
        """load: loads the model, on that thread."""
        self._load = load
        self._model: Model | None = None
        self._worker = OfProcess(partial(model_thread, thread))

    async def run(self, work: Callable[[Model], T]) -> T:
        """Call `work` with the model, on the model's thread."""

        def on_thread() -> T:
            if self._model is None:
                self._model = self._load()
            return work(self._model)

        return await asyncio.get_running_loop().run_in_executor(self._worker.get(), on_thread)


def model_thread(name: str) -> ThreadPoolExecutor:
    """A thread for a model; `UserFault` in a process that was forked after models had used the GPU."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # None also while another thread imports torch
    if getattr(cuda, "_is_in_bad_fork", bool)():
        raise UserFault("A forked process cannot use the GPU of its parent: start the processes with spawn.")
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


@contextmanager
def torch_faults(name: str) -> Iterator[None]:
    """Turn a fault of torch (out of memory, a failed device) into a `ModelFault`; name: of the model."""
    try:
        yield
    except DubitoError:  # also a RuntimeError, and already classified
        raise
    except RuntimeError as fault:
        raise ModelFault(name, f"torch failed: {first_line(fault)}") from fault


def first_line(fault: BaseException) -> str:
    """A fault's first line without a final full stop; its class name if it has no text."""
    return (str(fault) or type(fault).__name__).partition("\n")[0].rstrip(".: ")


def local_extra(kind: str, source: str) -> AbstractContextManager[None]:
    """Around an import that a model on this machine needs, see `needs_extra`; kind: of model."""
    return needs_extra(f"The {kind} '{source}' needs a package", "local")


def load_weights(load: Callable[..., T], source: str, what: str, instead: str) -> T:
    """Load a model from a local folder or the Hugging Face hub, without output on the terminal.

    load: takes the folder or name, and `local_files_only`; what: the kind of model; instead: a local folder that works
    and the prefix of its name. Both are for the `UserFault` if loading fails.
    """
    check_folder(source, what)
    folder = Path(source).expanduser()
    try:
        with quiet_loading():
            if folder.is_dir():
                return load(str(folder), local_files_only=True)
            return _load_from_hub(load, source)
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UserFault(f"The {what} '{source}' cannot be loaded ({reason}); a {instead}/path/to/folder.") from error


def fingerprint(source: str) -> str:
    """What tells the weights in a model's folder from others; "" where there is no such folder, or it cannot be read.

    It is of the files' names, sizes and about 1,024 blocks of 4 KB, evenly over each file and in safetensors also where
    each tensor begins: 10 ms for 90 MB, 30 ms for 3.5 GB that were read before. Whole files take seconds. A fine-tune
    of any tensor is seen; a change of a few rows of a large one may not be. A copy has the same fingerprint.
    """
    folder, digest = Path(source).expanduser(), sha256()
    if not any((folder / name).is_file() for name in CONFIGS):  # any other folder may hold a whole disk
        return ""
    try:
        for path in sorted(path for path in folder.rglob("*") if path.suffix in WEIGHTS):
            with open_file(path) as file:
                size = file.seek(0, SEEK_END)
                digest.update(f"{path.name} {size} ".encode())
                for place in _looked_at(file, size, tensors=path.suffix == ".safetensors"):
                    file.seek(place)
                    digest.update(file.read(BLOCK))
    except OSError:  # the model does not load either, and that is told in words about the model
        return ""
    return digest.hexdigest()


def _looked_at(file: BinaryIO, size: int, *, tensors: bool) -> list[int]:
    """Where the blocks of a file begin, ascending; tensors: also where each tensor of safetensors does."""
    places = {*range(0, size, max(BLOCK, size // BLOCKS)), max(0, size - BLOCK)}
    if tensors:
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, size, HEADER))
        places |= {8 + length + int(begin) for begin in _BEGINS.findall(header)}
    return sorted(place for place in places if place < size)


def snapshot(source: str) -> str:
    """The folder of a hub name that was downloaded; any other source as it is."""
    if Path(source).expanduser().is_dir():
        return source
    try:
        from huggingface_hub import try_to_load_from_cache  # noqa: PLC0415 - an extra

        config = try_to_load_from_cache(source, "config.json")
    except (ImportError, ValueError):  # not installed, or not a possible hub name
        return source
    return str(Path(config).parent) if isinstance(config, str) else source


def check_folder(source: str, what: str) -> None:
    """`UserFault` if a source that cannot be a hub name is not a folder; what: the kind of model."""
    if not Path(source).expanduser().is_dir() and (source.startswith(("/", "~", ".")) or source.count("/") > 1):
        raise UserFault(f"There is no {what} folder '{source}'.")


def _load_from_hub(load: Callable[..., T], source: str) -> T:
    try:
        return load(source, local_files_only=True)
    except Exception:
        from huggingface_hub import constants, get_session  # noqa: PLC0415

        if constants.HF_HUB_OFFLINE:
            raise
        # one request: the library would retry an unreachable hub for a minute
        get_session().head(constants.ENDPOINT, timeout=10)
        return load(source)


_reading_gguf = Lock()


@contextmanager
def gguf_read_once() -> Iterator[None]:
    """Let transformers read a GGUF file in a quarter of its time.

    transformers reads the file anew for the configuration, the tokenizer and the weights, and the names of its tensors
    anew for every module of the model. And each of a hundred thousand words of a tokenizer is a slice of a `memmap`,
    which costs NumPy many times a slice of an array.
    """
    import numpy as np  # noqa: PLC0415 - only for GGUF files

    gguf: Any = import_module("gguf")
    plain: Any = gguf.GGUFReader

    class Reader(plain):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, np.asarray(value) if isinstance(value, np.memmap) else value)

    with _reading_gguf:
        before = gguf.GGUFReader, gguf.get_tensor_name_map
        gguf.GGUFReader, gguf.get_tensor_name_map = cache(Reader), cache(gguf.get_tensor_name_map)
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = before


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bars and no notes of the libraries on the terminal while a model loads."""
    from huggingface_hub import utils  # noqa: PLC0415
    from transformers.utils import logging as messages  # noqa: PLC0415

    hub, transformers = cast("Any", utils), cast("Any", messages)
    loggers = [logging.getLogger(name) for name in ("transformers", "sentence_transformers", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    bars, downloads = transformers.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    gguf: Any = import_module("transformers.modeling_gguf_pytorch_utils")  # it has its own progress bar
    gguf_bar = gguf.tqdm
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    transformers.disable_progress_bar()
    hub.disable_progress_bars()
    gguf.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        gguf.tqdm = gguf_bar
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars:
            transformers.enable_progress_bar()
        if downloads:
            hub.enable_progress_bars()
