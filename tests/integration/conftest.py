"""Real vLLM servers of SmolLM2."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from dubito.tests.json_lines import write_lines

START_LIMIT_S = 420
STOP_LIMIT_S = 15
SMALL = {
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""The environment of vLLM on a small machine. Without multiprocessing the engine's own process does the work: a third
process would import vLLM once more. Nothing is compiled for the few tokens of a test."""


class VLLMServer:
    """A `vllm serve` process on this machine, with its engine processes in a process group of its own."""

    def __init__(self, executable: str, folder: Path, log: Path, *flags: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        self.model = "smollm2"
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._command = [
            *(executable, "serve", str(folder), "--served-model-name", self.model),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--dtype", "float32", "--enforce-eager", "--max-model-len", "4096", *flags),
        ]

    @property
    def pid(self) -> int:
        """The API process's id, which is its group's too."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers."""
        env = {**os.environ, **SMALL}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=env, start_new_session=True, cwd=self._log.parent
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not self._healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                state = f"ended with {self._process.returncode}" if self._process.returncode else "did not answer"
                self.stop()
                pytest.fail(f"vLLM {state}; the end of its log:\n{self._log.read_text(errors='replace')[-4000:]}")
            time.sleep(0.5)

    def kill_api(self) -> None:
        """Kill the API process as a crash would; its engine processes are left behind until `stop`."""
        os.kill(self.pid, signal.SIGKILL)
        assert self._process is not None
        self._process.wait(STOP_LIMIT_S)

    def stop(self) -> None:
        """End it with everything that it started, orphans included."""
        if self._process is None:
            return
        group = self.pid
        # orphans of a killed server do not listen to SIGTERM
        _signal(group, signal.SIGTERM if self._process.poll() is None else signal.SIGKILL)
        deadline = time.monotonic() + STOP_LIMIT_S
        while (self._process.poll() is None or _alive(group)) and time.monotonic() < deadline:
            time.sleep(0.1)
        _signal(group, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def _healthy(self) -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as reply:
                return bool(reply.status == 200)
        except (URLError, OSError):
            return False


@pytest.fixture
def questions(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """As many questions as `QUESTIONS` of the test's module says, each with its own answer."""
    count: int = request.module.QUESTIONS
    records = ({"question": f"Who is number {number}?", "answers": [f"a{number}"]} for number in range(count))
    return write_lines(tmp_path / "questions.jsonl", records)


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="session")
def start_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., VLLMServer]]:
    """Start a server of one's own: `start_vllm(folder, *flags)`; it is ended with the session, or by its `stop`."""
    executable = os.environ.get("DUBITO_TEST_VLLM")
    if not executable:
        pytest.skip("set DUBITO_TEST_VLLM to a vllm executable (tests/vllm_cpu.sh DIR makes one)")
    servers: list[VLLMServer] = []

    def start(folder: Path, *flags: str) -> VLLMServer:
        server = VLLMServer(executable, folder, tmp_path_factory.mktemp("vllm") / "server.log", *flags)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def vllm_server(
    start_vllm: Callable[..., VLLMServer], smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> VLLMServer:
    """The server of a module: SmolLM2 as `smollm2`, float32, a window of 4096 tokens; its authors recommend top_k 1."""
    folder = tmp_path_factory.mktemp("opinionated")
    for file in smollm2_folder.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((smollm2_folder / "generation_config.json").read_text())
    (folder / "generation_config.json").unlink()
    (folder / "generation_config.json").write_text(json.dumps({**config, "top_k": 1, "do_sample": True}))
    return start_vllm(folder)
