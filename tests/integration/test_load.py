"""Many runs at once, one after another, and runs whose client goes away: `benchmarks/load.py` in small."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from dubito.benchmarks.load import (
    WAYS,
    Asked,
    all_bled,
    ask,
    at_once,
    graphs,
    held,
    keys_of,
    one_after_another,
    runs_of,
    told,
    town_server,
)
from dubito.settings import settings

Towns = Mapping[str, Any]


@pytest.fixture(scope="module")
def ports() -> Iterator[list[int]]:
    with town_server() as ports, pytest.MonkeyPatch.context() as environment:
        environment.setenv("DUBITO_KEYS", keys_of(ports))
        settings.cache_clear()
        yield ports
    settings.cache_clear()


def until(ports: list[int], done: Callable[[Towns], bool]) -> None:
    end = time.monotonic() + 60
    while not done(told(ports)["towns"]):
        assert time.monotonic() < end
        time.sleep(0.05)


def waits(towns: Towns) -> bool:
    return all(town["under_way"] for town in towns.values()) and len(towns) > 0


def hung_up(towns: Towns) -> bool:
    return all(town["dropped"] == town["most"] and not town["under_way"] for town in towns.values()) and len(towns) > 0


def every_run(ports: list[int], folder: Path) -> list[Asked]:
    """A run of every graph in each of the ways, and one of each chat form, which only wraps its graph."""
    wrapped = [graph for graph in graphs() if graph.endswith("_chat")]
    asked = [graph for graph in graphs() if graph not in wrapped for _ in WAYS] + wrapped
    return [one for number, graph in enumerate(asked) for one in runs_of(graph, [number], ports, folder)]


async def test_runs_of_every_graph_at_once_do_not_meet(ports: list[int], tmp_path: Path) -> None:
    ended = await at_once(every_run(ports, tmp_path))
    assert all_bled(ended, told(ports)) == []


def test_threads_descriptors_and_connections_do_not_grow_with_the_runs(ports: list[int], tmp_path: Path) -> None:
    asked = [one for i, graph in enumerate(graphs()) for one in runs_of(graph, [i], ports, tmp_path)]
    one_after_another(asked)
    before = held(ports)
    one_after_another([*asked, *(one for one in asked if not one.graph.endswith("_chat"))])
    after = held(ports)
    assert after.threads <= before.threads
    assert after.descriptors - after.connections <= before.descriptors - before.connections
    assert after.connections <= before.connections + 8, "as many as eight runs at a time need"


async def test_a_cancelled_run_and_a_left_stream_end_their_requests(ports: list[int], tmp_path: Path) -> None:
    waiting = [replace(one, seconds=60.0) for one in runs_of("dense", [801, 802], ports, tmp_path)]
    ways = ("ainvoke", "astream with a trace")
    runs = [asyncio.create_task(ask(one, way)) for one, way in zip(waiting, ways, strict=True)]
    await asyncio.to_thread(until, ports, lambda towns: waits(towns) and len(towns) == 2)
    for run in runs:
        run.cancel()
    assert all(isinstance(one, asyncio.CancelledError) for one in await asyncio.gather(*runs, return_exceptions=True))
    await asyncio.to_thread(until, ports, hung_up)
    await asyncio.sleep(0.5)
    assert told(ports)["towns"] == {}, "no request follows"


def test_a_page_that_is_left_ends_its_run_and_sigterm_ends_the_server(ports: list[int], tmp_path: Path) -> None:
    (asked,) = (replace(one, seconds=60.0) for one in runs_of("vanilla_rag", [803], ports, tmp_path))
    context = {name: str(value).lower() if value is False else str(value) for name, value in asked.context.items()}
    command = ["ui", "--port", "0", "--llm", context["llm"], "--corpus", context["corpus"]]
    page = subprocess.Popen(
        [sys.executable, "-m", "dubito", *command, "--allow", f"encoder={context['encoder']}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ},
    )  # fmt: skip
    assert page.stdout is not None
    url = page.stdout.readline().split()[2]
    body = {"graph": "vanilla_rag", **asked.given, "settings": context}
    with httpx.stream("POST", f"{url}ask", json=body, timeout=60) as reply:
        assert reply.status_code == 200
        until(ports, waits)
    until(ports, hung_up)
    with httpx.stream("POST", f"{url}ask", json=body, timeout=60) as reply:
        until(ports, waits)
        before = time.monotonic()
        page.send_signal(signal.SIGTERM)
        with suppress(httpx.RemoteProtocolError):
            assert "event: done" not in "".join(reply.iter_text())
        _, said = page.communicate(timeout=30)
    assert time.monotonic() - before < 5
    assert (page.returncode, said) == (0, "")
    until(ports, hung_up)
    assert told(ports)["towns"] == {}
