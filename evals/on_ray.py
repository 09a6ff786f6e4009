"""Questions asked by workers on the machines of a Ray cluster; what comes out is kept where the run was started."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, cast

from ..errors import UserFault
from ..models.remembered import CallMemory
from ..models.telemetry import stop_exporting
from ..settings import settings
from .bench import Task
from .runner import Ask, Asker, error_of
from .store import Outcome

LOCAL = "local"
"""The address of a cluster that is started here, for this run."""


class Worker:
    """Asks questions in a process of its own, with models, indexes and a memory of calls of its machine's."""

    def __init__(self, run: str, seed: int, *, traces: bool, memory: bool) -> None:
        """run: names the run among others; the rest as `Asker` has it."""
        calls = CallMemory(settings().cache / "calls" / f"{run}.sqlite") if memory else None
        self._asker = Asker(calls, seed, traces=traces)

    async def ask(self, task: Task) -> Outcome:
        """The outcome of a question."""
        return await self._asker(task)

    async def stop(self) -> None:
        """Send the spans that are still kept, which a killed process would lose."""
        await asyncio.to_thread(stop_exporting)


@contextlib.contextmanager
def workers(
    address: str, count: int, at_once: int, *, run: str, seed: int, traces: bool, memory: bool
) -> Iterator[tuple[Ask, Sequence[int]]]:
    """Workers on a cluster, and how many questions each has asked so far.

    address: `LOCAL`, auto, HOST:PORT or ray://HOST:PORT; count: workers, each of which opens its own models; at_once:
    questions that they are given together. Raises `UserFault` without Ray, and where no cluster answers.
    """
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as fault:
        raise UserFault(
            "--ray needs Ray: pip install 'dubito[ray]', here and on the machines of the cluster."
        ) from fault
    begun_here = not ray.is_initialized()
    if begun_here:
        _connect(ray, address, count)
    try:
        _check_room(ray, count)
        # a restarted worker only lost what it had open; the question that was under way is asked again once
        options: dict[str, Any] = {
            "max_restarts": -1,
            "max_task_retries": 1,
            "max_concurrency": at_once,
            "num_cpus": 1,
        }
        made: Any = ray.remote(**options)(Worker)
        actors = [made.remote(run, seed, traces=traces, memory=memory) for _ in range(count)]
        asked, under_way = [0] * count, [0] * count

        async def ask(task: Task) -> Outcome:
            place = min(range(count), key=lambda one: under_way[one])
            under_way[place] += 1
            try:
                outcome = await actors[place].ask.remote(task)
            except ray.exceptions.RayError as fault:
                lost = {**error_of(fault), "message": f"A worker of the cluster was lost: {fault}", "unavailable": True}
                return Outcome(system=task.system, question=task.question, output=None, error=lost, seconds=0.0)
            finally:
                under_way[place] -= 1
            asked[place] += 1
            return cast("Outcome", outcome)

        yield ask, asked
        with contextlib.suppress(ray.exceptions.RayError):  # a worker that is lost has no spans
            ray.get([actor.stop.remote() for actor in actors])
        for actor in actors:
            ray.kill(actor)
    finally:
        if begun_here:
            ray.shutdown()


def _check_room(ray: Any, count: int) -> None:  # noqa: ANN401 - the module
    """A worker takes a core; one for which there is none would be waited for without end."""
    cores = int(ray.cluster_resources().get("CPU", 0))
    if cores < count:
        raise UserFault(
            f"The Ray cluster has {cores} cores, and {count} workers need one each: ask for fewer with --workers, or "
            "add machines to it."
        )


def _connect(ray: Any, address: str, count: int) -> None:  # noqa: ANN401 - the module
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    given: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address == LOCAL:
            cores = max(count, os.cpu_count() or 1)  # workers wait for servers more than they compute
            ray.init(include_dashboard=False, num_cpus=cores, **given)
        else:
            ray.init(address=address, **given)
    except (ConnectionError, ValueError, RuntimeError) as fault:
        raise UserFault(
            f"No Ray cluster answers at '{address}' ({fault}): start one with ray start --head, or use --ray local."
        ) from fault
