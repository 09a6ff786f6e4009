import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from contextvars import ContextVar

import pytest
from dubito.models.background import await_in_background, run_in_background

colour: ContextVar[str] = ContextVar("colour", default="none")


async def loop_and_thread() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    return asyncio.get_running_loop(), threading.current_thread()


def test_runs_on_one_daemon_loop_whoever_asks() -> None:
    loop, thread = run_in_background(loop_and_thread())
    assert thread.daemon
    assert thread is not threading.current_thread()
    seen = []
    others = [threading.Thread(target=lambda: seen.append(run_in_background(loop_and_thread()))) for _ in range(8)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert seen == [(loop, thread)] * 8


def test_returns_and_raises_what_the_coroutine_does() -> None:
    async def seven() -> int:
        await asyncio.sleep(0)
        return 7

    async def fail() -> None:
        raise LookupError("no")

    assert run_in_background(seven()) == 7
    with pytest.raises(LookupError, match="no"):
        run_in_background(fail())


def test_context_variables_are_seen() -> None:
    async def read() -> str:
        return colour.get()

    token = colour.set("red")
    try:
        assert run_in_background(read()) == "red"
    finally:
        colour.reset(token)
    assert run_in_background(read()) == "none"


def test_refuses_on_its_own_loop_instead_of_waiting_for_ever() -> None:
    async def inner() -> int:
        return 1

    async def outer() -> int:
        return run_in_background(inner())

    with pytest.raises(RuntimeError, match="background event loop itself"):
        run_in_background(outer())


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_an_interrupted_caller_cancels_the_coroutine() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def endless() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    def interrupt() -> None:
        started.wait(10)
        time.sleep(0.2)  # by then the caller waits for the result
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        run_in_background(endless())
    killer.join()
    assert cancelled.wait(10)


def test_a_process_with_a_busy_background_still_ends() -> None:
    code = (
        "import asyncio, threading\n"
        "from dubito.models.background import run_in_background\n"
        "threading.Thread(target=lambda: run_in_background(asyncio.sleep(600)), daemon=True).start()\n"
        "run_in_background(asyncio.sleep(0.05))\n"
        "print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_works_in_a_forked_child() -> None:
    code = (
        "import asyncio, os\n"
        "from dubito.models.background import run_in_background\n"
        "run_in_background(asyncio.sleep(0))\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    run_in_background(asyncio.sleep(0)); os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "7"


def test_is_awaited_from_several_loops_one_after_another() -> None:
    loop, _ = run_in_background(loop_and_thread())
    for _ in range(2):
        assert asyncio.run(await_in_background(loop_and_thread()))[0] is loop
    assert run_in_background(await_in_background(loop_and_thread()))[0] is loop


async def test_a_cancelled_wait_cancels_the_coroutine() -> None:
    started, cancelled = threading.Event(), threading.Event()

    async def endless() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(await_in_background(endless()), 0.2)
    assert started.is_set()
    assert await asyncio.to_thread(cancelled.wait, 10)
