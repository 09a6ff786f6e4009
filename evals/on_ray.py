"""An evaluation on a Ray cluster: workers ask the questions, and this process stores their outcomes."""

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any, cast

from ..errors import UserFault, extra_command
from ..resources.call_cache import CallMemory
from ..resources.telemetry import stop_exporting
from ..settings import settings
from .run_folder import EvaluationTask
from .runner import Ask, Asker, error_of, resources_with_memory
from .store import Outcome

LOCAL = "local"
"""The address of a cluster that is started on this machine for this run."""


class Worker:
    """A process on the cluster with its own models, indexes and cache of model calls."""

    def __init__(self, run: str, seed: int, *, traces: bool, memory: bool) -> None:
        """run: the run's unique name; memory: cache model calls; seed, traces: as in `Asker`."""
        calls = CallMemory(settings().cache / "calls" / f"{run}.sqlite") if memory else None
        self._asker = Asker(resources_with_memory(calls, seed), traces=traces)

    async def ask(self, task: EvaluationTask) -> Outcome:
        """The outcome of a question."""
        return await self._asker(task)

    async def stop(self) -> None:
        """Send the remaining spans, which would be lost with the process."""
        await asyncio.to_thread(stop_exporting)


@contextlib.contextmanager
def workers(
    address: str, count: int, at_once: int, *, run: str, seed: int, traces: bool, memory: bool
) -> Iterator[Ask]:
    """Start workers on a cluster; yields the function that asks.

    address: `LOCAL`, auto, HOST:PORT or ray://HOST:PORT; count: workers, each of which opens its own models; at_once:
    questions at a time over all workers. Raises `UserFault` without Ray, and if no cluster answers.
    """
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as fault:
        raise UserFault(
            f"A cluster needs Ray: {extra_command('ray')}, here and on the machines of the cluster."
        ) from fault
    begun_here = not ray.is_initialized()
    if begun_here:
        _connect(ray, address, count)
    try:
        _check_cores(ray, count)
        # a restarted worker loses only what it had open; the question in flight is asked once more
        options: dict[str, Any] = {
            "max_restarts": -1,
            "max_task_retries": 1,
            "max_concurrency": at_once,
            "num_cpus": 1,
        }
        remote: Any = ray.remote(**options)(Worker)
        actors = [remote.remote(run, seed, traces=traces, memory=memory) for _ in range(count)]
        in_flight = [0] * count

        async def ask(task: EvaluationTask) -> Outcome:
            number = min(range(count), key=lambda worker: in_flight[worker])
            in_flight[number] += 1
            try:
                return cast("Outcome", await actors[number].ask.remote(task))
            except ray.exceptions.RayError as fault:
                lost = {**error_of(fault), "message": f"A worker of the cluster was lost: {fault}", "unavailable": True}
                return Outcome(system=task.system, question=task.question, output=None, error=lost, seconds=0.0)
            finally:
                in_flight[number] -= 1

        try:
            yield ask
            with contextlib.suppress(ray.exceptions.RayError):  # a lost worker has no spans
                ray.get([actor.stop.remote() for actor in actors])
        finally:
            for actor in actors:
                ray.kill(actor)
    finally:
        if begun_here:
            ray.shutdown()


def _check_cores(ray: Any, count: int) -> None:  # noqa: ANN401 - the module
    """Refuse more workers than cores: Ray would wait for the missing cores without end."""
    cores = int(ray.cluster_resources().get("CPU", 0))
    if cores < count:
        raise UserFault(
            f"The Ray cluster has {cores} cores, and {count} workers need one each: use fewer workers, or add machines."
        )


def _connect(ray: Any, address: str, count: int) -> None:  # noqa: ANN401 - the module
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        if address == LOCAL:
            cores = max(count, os.cpu_count() or 1)  # workers wait for servers more than they compute
            ray.init(include_dashboard=False, num_cpus=cores, **options)
        else:
            ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as fault:
        raise UserFault(
            f"No Ray cluster answers at '{address}' ({fault}): start one with ray start --head, or use local."
        ) from fault
