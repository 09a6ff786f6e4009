"""What every test stands on: no hub, no cache of the user's, retries without waiting where asked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait by spinning starve a small machine
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # a shell's background: the programs that are tested would inherit it and never hear a Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder that holds `data/` and `models/`; tests that need it skip without it."""
    folder = os.environ.get("DUBITO_TEST_DATA")
    if not folder:
        pytest.skip("set DUBITO_TEST_DATA to the folder that holds data/ and models/")
    return Path(folder)


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait a millisecond, not seconds."""
    from dubito import __all__ as exported  # noqa: PLC0415
    from dubito.graphs import wiring  # noqa: PLC0415

    graphs = [import_module(f"dubito.graphs.{name}") for name in exported if name != "__version__"]
    quick = wiring.RETRY._replace(initial_interval=0.001, max_interval=0.002, jitter=False)
    for module in (*graphs, wiring):
        monkeypatch.setattr(module, "RETRY", quick)
