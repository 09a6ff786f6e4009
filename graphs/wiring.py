"""How a node becomes a step of a LangGraph graph: one place for context, resources, usage, retries, sync and async."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import wraps
from typing import Any, Generic, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_config
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import RetryPolicy

from ..errors import ModelFault, ModelUnavailable
from ..models.background import run_in_background
from ..models.metering import Call, Meter, current_meter, watchers
from ..models.offer import check_allowed
from ..models.resources import Resources, shared_resources
from ..models.telemetry import export_if_asked
from ..state.context import BaseContext
from ..state.records import Usage

C = TypeVar("C", bound=BaseContext)
T = TypeVar("T")
Node = Callable[[Any, C, Resources], Awaitable[Mapping[str, Any]]]
Fallback = Callable[[Any, ModelUnavailable], Mapping[str, Any]]

RETRY = RetryPolicy(retry_on=ModelFault, max_attempts=4, initial_interval=0.5, backoff_factor=2.0, max_interval=8.0)
"""Model faults are tried again here and nowhere else: the clients' own retries are off."""


class Step(Runnable[Any, Any]):
    """A node for callers of both kinds; unlike a RunnableLambda it is no run of its own within LangGraph's of the node,
    so that every trace shows a node once."""

    def __init__(
        self, run: Callable[[Any], dict[str, Any]], arun: Callable[[Any], Awaitable[dict[str, Any]]], name: str
    ) -> None:
        """run, arun: the node, for `.invoke` and for `.ainvoke`."""
        self._run, self._arun, self.name = run, arun, name

    def invoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> dict[str, Any]:  # noqa: A002, ANN401
        """Run the node."""
        return self._run(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> dict[str, Any]:  # noqa: A002, ANN401
        """Run the node on the caller's event loop."""
        return await self._arun(input)


class Steps(Generic[C]):
    """Turns the nodes of one graph into its steps.

    `steps(node)` wraps `async def node(state, context, resources) -> update`: `.invoke` runs it on a background event
    loop, `.ainvoke` on the caller's; a missing context means the defaults; what the node cost is added to `usage`.
    """

    def __init__(self, context: type[C], resources: Resources | None) -> None:
        """context: the graph's context type; resources: live objects to use in place of names."""
        export_if_asked()
        self._context = context
        self._resources = resources

    def __call__(self, node: Node[C], fallback: Fallback | None = None) -> Runnable[Any, Any]:
        """Wrap a node; fallback: gives the update when the last attempt ends in a model fault, which else is raised."""

        async def arun(state: Any) -> dict[str, Any]:  # noqa: ANN401 - each graph has its own state
            return await self._metered(node, state, fallback)

        def run(state: Any) -> dict[str, Any]:  # noqa: ANN401
            return run_in_background(self._metered(node, state, fallback))

        return Step(run, arun, getattr(node, "__name__", "node"))

    def route(self, question: Callable[[Any, C], T]) -> Callable[[Any], T]:
        """A routing function that needs the context too, as one of the state alone.

        Where a caller edits a thread's state there is no run, and so no context: then it is that of the last step.
        """

        @wraps(question)
        def routed(state: Any) -> T:  # noqa: ANN401 - each graph has its own state
            run: Runtime[C] | None = self._runtime()
            return question(state, self.context() if run else self._of_last_step(state))

        return routed

    def context(self) -> C:
        """The running graph's context; the defaults where the caller gave none.

        Below a parent graph it may be the parent's: of another technique's context the shared settings hold, and a
        plain dict is read as ours if it names any of our settings; any other context is the parent's own business.
        """
        given: object = self._runtime().context
        if isinstance(given, self._context):
            return given
        ours = set(self._context.model_fields)
        if isinstance(given, BaseContext):
            return self._context.model_validate(given.model_dump(include=ours))
        return self._context.model_validate(given if isinstance(given, Mapping) and ours & given.keys() else {})

    def _of_last_step(self, state: Mapping[str, Any]) -> C:
        remembered = state.get("settings") or {}
        return self._context.model_validate(
            {name: value for name, value in remembered.items() if name in self._context.model_fields}
        )

    def _runtime(self) -> Runtime[C]:
        return get_runtime(self._context)

    async def _metered(self, node: Node[C], state: Any, fallback: Fallback | None) -> dict[str, Any]:  # noqa: ANN401
        runtime, context, name = self._runtime(), self.context(), str(get_config()["metadata"]["langgraph_node"])
        await check_allowed(context)
        meter = _streaming_meter(runtime, name)
        before = current_meter.set(meter)
        start = time.perf_counter()
        try:
            update = dict(await node(state, context, self._resources or shared_resources()))
        except ModelFault as fault:
            attempt = runtime.execution_info.node_attempt if runtime.execution_info else RETRY.max_attempts
            if attempt < RETRY.max_attempts:
                raise
            unavailable = ModelUnavailable(fault.endpoint, attempt, fault.reason)
            if fallback is None:
                raise unavailable from fault
            update = dict(fallback(state, unavailable))
        finally:
            current_meter.reset(before)
        seconds = time.perf_counter() - start
        if watchers.evidence is not None and update.get("evidence"):
            watchers.evidence(state, update["evidence"], seconds)
        # the first step resets `usage` for the thread's new question and is not counted
        update.setdefault("usage", _usage(name, meter.calls, seconds))
        if state.get("settings") not in (None, settings := context.model_dump(mode="json")):
            update.setdefault("settings", settings)  # a replay with others
        return update


def _streaming_meter(runtime: Runtime[Any], node: str) -> Meter:
    task = str(get_config()["configurable"].get("checkpoint_ns", ""))

    def on_call(call: Call) -> None:
        runtime.stream_writer({"type": "llm_call", "node": node, "task": task, "call": asdict(call)})

    def on_progress(what: str, done: int, total: int) -> None:
        with suppress(RuntimeError):  # what is being opened is opened for others too when this caller's loop has closed
            runtime.stream_writer({"type": "progress", "node": node, "what": what, "done": done, "total": total})

    return Meter(on_call, on_progress)


def _usage(node: str, calls: list[Call], seconds: float) -> Usage:
    prompt, completion = sum(c.prompt_tokens for c in calls), sum(c.completion_tokens for c in calls)
    cost = {"calls": len(calls), "prompt_tokens": prompt, "completion_tokens": completion}
    return {**cost, "nodes": {node: {"runs": 1, **cost, "seconds": seconds}}}  # type: ignore[typeddict-item]
