"""Every graph test runs under the detector that `langgraph dev` uses: a blocking call on an event loop raises."""

from __future__ import annotations

from collections.abc import Iterator

import langchain_core.language_models.chat_models  # noqa: F401 - where LangChain is installed, importing it reads files
import pytest
from blockbuster import BlockBuster
from dubito.config import config


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[None]:
    """Make a blocking call raise wherever an event loop runs: in async tests, and in the loop that serves `.invoke`."""
    config()  # a process reads it before there is a loop; a test of another folder may have forgotten it
    detector = BlockBuster()
    for lock in ("threading.Lock.acquire", "threading.Lock.acquire_lock"):
        del detector.functions[lock]  # a sync `.invoke` in a notebook's loop must wait for its result
    detector.activate()
    yield
    detector.deactivate()
