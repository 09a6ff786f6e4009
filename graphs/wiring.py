"""How our nodes run in LangGraph: one place for context, resources, usage, retries, sync and async callers."""

import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict
from functools import partial, wraps
from itertools import pairwise
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config
from langgraph.config import get_config
from langgraph.constants import TAG_NOSTREAM
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import push_message
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime, get_runtime
from langgraph.types import RetryPolicy
from langgraph.typing import InputT, OutputT, StateT

from ..errors import ModelFault, ModelUnavailable
from ..models.answer_stream import AnswerStream, Shown, current_answer
from ..models.background import run_in_background
from ..models.metering import Meter, current_meter, spent_by_task, watchers
from ..nodes.check_certainty import check_certainty
from ..nodes.cite import cite, leave_uncited
from ..nodes.prepare import Hook, prepare
from ..prompt_templates import PROMPTS, Prompt
from ..prompts import own_prompts
from ..resources.allowlist import check_allowed
from ..resources.fitting import fitted
from ..resources.resources import Resources, shared_resources
from ..resources.telemetry import export_if_asked
from ..state.context import PROMPT_FIELD, BaseContext
from ..state.messages import Call
from ..state.mixins import AnsweringContext, CitingContext
from ..state.records import Usage
from .settings_of_nodes import settings_read

C = TypeVar("C", bound=BaseContext)
T = TypeVar("T")
Node = Callable[[Any, C, Resources], Awaitable[Mapping[str, Any]]]
Fallback = Callable[[Any, ModelUnavailable], Mapping[str, Any]]

RETRY = RetryPolicy(
    retry_on=lambda fault: isinstance(fault, ModelFault) and not fault.attempts,
    max_attempts=4,
    initial_interval=0.5,
    backoff_factor=2.0,
    max_interval=8.0,
)
"""For the model faults whose requests were not retried one by one, as those of a `Server` are."""


ANSWERS_FOR_PARENT = "answers_for_parent"
"""The tag of a subgraph whose answer is the answer of its parent, such as that of a chat form."""

_answers: WeakKeyDictionary[Any, dict[str, Shown]] = WeakKeyDictionary()
"""The answers of each run whose messages somebody streams: by LangGraph's handler of them, then by graph run."""

_calls: WeakKeyDictionary[Any, list[Call]] = WeakKeyDictionary()
"""The finished calls of each task, by LangGraph's reader of the state for it, which all attempts of the task share."""


def silent(graph: CompiledStateGraph[Any, Any, Any, Any]) -> CompiledStateGraph[Any, Any, Any, Any]:
    """A subgraph whose answers are not the answer of its parent: they are not streamed."""
    return graph.with_config(tags=[TAG_NOSTREAM])


class NodeRunnable(Runnable[Any, Any]):
    """A node for sync and async callers.

    LangChain's RunnableLambda would open its own run inside LangGraph's run of the node: traces would show each node
    twice.
    """

    def __init__(self, run: Callable[[Any], Coroutine[Any, Any, dict[str, Any]]], name: str) -> None:
        """run: the node as a function of the state."""
        self._run, self.name = run, name

    def invoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> dict[str, Any]:  # noqa: A002, ANN401
        """Run the node on the background event loop."""
        return run_in_background(self._run(input))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> dict[str, Any]:  # noqa: A002, ANN401
        """Run the node on the caller's event loop."""
        return await self._run(input)


class CompiledMachine(CompiledStateGraph[StateT, C | Mapping[str, Any], InputT, OutputT]):  # type: ignore[type-var]
    """A compiled `Machine`. It takes its context as settings by name, too."""

    def get_context_jsonschema(self) -> dict[str, Any] | None:
        """The settings as a schema, with a field for each prompt. Studio shows both at the nodes that use them."""
        schema = super().get_context_jsonschema()
        if schema is None:
            return None
        nodes = nodes_of_settings(self)
        settings = {
            name: {**field, "langgraph_nodes": nodes[name]} if name in nodes else field
            for name, field in schema["properties"].items()
        }
        prompts = {
            f"{prompt.name}{PROMPT_FIELD}": {
                "type": "string",
                "title": f"Prompt: {prompt.name}",
                "description": f"A template in place of dubito's own. The reply must be: {prompt.output}.",
                "default": prompt.source,
                "langgraph_type": "prompt",
                "langgraph_nodes": list(prompt.nodes),
            }
            for prompt in prompts_of(self)
        }
        return {**schema, "properties": {**settings, **prompts}}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:  # noqa: ANN401 - IPython's own signature
        """The graph as a notebook draws it. LangGraph's own picture would be asked of a web service."""
        figure = f"```mermaid\n{self.get_graph().draw_mermaid()}```"
        return {"text/plain": repr(self), "text/markdown": figure}


def after_answer(state: Any, context: AnsweringContext) -> str:  # noqa: ANN401 - each graph has its own state
    """Is the answer's certainty looked at, is it cited, or does the graph end?"""
    if context.uncertainty != "own" or context.calibration:
        return "check_certainty"
    return after_certainty(state, context)


def after_certainty(state: Any, context: BaseContext) -> str:  # noqa: ANN401 - each graph has its own state
    """Is the answer cited, or does the graph end?"""
    return "cite" if getattr(context, "cite", False) else END


def prompts_of(graph: CompiledStateGraph[Any, Any, Any, Any]) -> list[Prompt]:
    """The prompts that a graph's nodes use, those of its subgraphs too."""
    nodes = {name.rpartition(":")[2] for name in graph.get_graph(xray=True).nodes}
    return [prompt for prompt in PROMPTS.values() if nodes.intersection(prompt.nodes)]


def nodes_of_settings(graph: CompiledStateGraph[Any, Any, Any, Any]) -> dict[str, list[str]]:
    """The nodes whose code reads a setting, by the setting; those of the graph's subgraphs, too.

    A setting that decides which node follows belongs to the node before. Settings of the whole run have no nodes.
    """
    nodes: dict[str, dict[str, None]] = {}
    for machine in [graph.builder, *(part.builder for _, part in graph.get_subgraphs(recurse=True))]:  # type: ignore[attr-defined]
        for node, settings in machine.settings_of_nodes():
            for setting in settings:
                nodes.setdefault(setting, {})[node] = None
    return {setting: list(of) for setting, of in nodes.items()}


class Machine(StateGraph[StateT, C, InputT, OutputT]):
    """A LangGraph `StateGraph` of our nodes, each under the name of its function and retried after a model fault.

    A node is `async def node(state, context, resources) -> update`. It runs on a background event loop for `.invoke`
    and on the caller's loop for `.ainvoke`, with the graph's context and resources. Its model calls, tokens and seconds
    are added to `usage`.
    """

    def __init__(
        self,
        state: type[StateT],
        context: type[C],
        given: type[InputT],
        output: type[OutputT],
        resources: Resources | None,
    ) -> None:
        """state, context, given, output: the graph's types, `given` that of its input.

        resources: live objects to use in place of what the context names.
        """
        super().__init__(state, context_schema=context, input_schema=given, output_schema=output)
        context.configured()  # reads the configuration file now: on an event loop it would block
        export_if_asked()
        self._context, self._resources = context, resources
        self._code: dict[str, Sequence[Callable[..., object]]] = {}

    def compile(self, *args: Any, **named: Any) -> CompiledMachine[StateT, C, InputT, OutputT]:  # type: ignore[override]  # noqa: ANN401
        """Compile the graph (see LangGraph's `StateGraph.compile`)."""
        compiled: Any = super().compile(*args, **named)
        compiled.__class__ = CompiledMachine  # LangGraph makes its own class and takes no other
        made: CompiledMachine[StateT, C, InputT, OutputT] = compiled
        return made

    def add_prepare(self, *hooks: Hook) -> None:
        """Begin the graph with `nodes.prepare`; hooks: the technique's own part of it."""
        self._add_step("prepare", partial(prepare, schema=self.state_schema, hooks=hooks))
        self._code["prepare"] = hooks  # the rest of it opens what all settings name
        self.add_edge(START, "prepare")

    def add_steps(self, *nodes: Node[C], fallback: Fallback | None = None) -> None:
        """Add nodes without edges. fallback: makes their update if the last attempt ends in a model fault."""
        for node in nodes:
            self._add_step(node.__name__, node, fallback)

    def add_path(self, *names: str) -> None:
        """Add an edge from each node to the next one."""
        for source, target in pairwise(names):
            self.add_edge(source, target)

    def add_end(self, *last: str, is_part: bool = False) -> None:
        """End the graph after these nodes, with a look at the answer's certainty and citations if the settings ask so.

        is_part: this is a part of another graph, which looks at the certainty of its own answer.
        """
        if is_part:
            for name in last:
                self.add_edge(name, END)
            return
        question: Any = after_answer
        after = self.add_last_steps()
        for name in last:
            self.add_conditional_edges(name, self.route(question), after)

    def add_last_steps(self) -> list[str]:
        """Add the look at an answer's certainty, and its citations; returns where `after_answer` may lead."""
        step: Any = check_certainty  # of graphs whose context says how certain an answer must be
        self.add_steps(step)
        return ["check_certainty", *self.add_cite("check_certainty")]

    def add_cite(self, name: str) -> list[str]:
        """Add the citations after a node, in a graph that can cite; returns where the node may lead."""
        if not issubclass(self._context, CitingContext):
            self.add_edge(name, END)
            return [END]
        step: Any = cite
        self.add_steps(step, fallback=leave_uncited)
        self.add_conditional_edges(name, self.route(after_certainty), ["cite", END])
        self.add_edge("cite", END)
        return ["cite", END]

    def settings_of_nodes(self) -> Iterator[tuple[str, set[str]]]:
        """Each node with the settings that its code reads, or the code that decides which node follows."""
        for node in self.nodes:
            routes = [getattr(branch.path, "func", branch.path) for branch in self.branches[node].values()]
            yield (
                node,
                set().union(*(settings_read(code, self._context) for code in [*self._code.get(node, ()), *routes])),
            )

    def _add_step(self, name: str, node: Node[C], fallback: Fallback | None = None) -> None:
        self._code[name] = [node]
        self.add_node(name, NodeRunnable(partial(self._run, node, fallback), name), retry_policy=RETRY)

    def route(self, question: Callable[[Any, C], T]) -> Callable[[Any], T]:
        """Make a routing function of state and context one of the state alone.

        When a caller edits a thread's state there is no run and so no context: then the router gets the context of the
        last step, which the state holds in `settings`.
        """

        @wraps(question)
        def routed(state: Any) -> T:  # noqa: ANN401 - each graph has its own state
            run: Runtime[C] | None = self._runtime()
            return question(state, self.context() if run else self._context_of_last_step(state))

        return routed

    def context(self) -> C:
        """The running graph's context; what the operator configured if the caller gave none.

        In a subgraph the runtime context may belong to the parent. Another dubito context: copy the fields we share. A
        dict with at least one of our fields: validate it. Anything else: as if the caller gave none.
        """
        given: object = self._runtime().context
        if isinstance(given, self._context):
            return given
        ours = set(self._context.model_fields)
        if isinstance(given, BaseContext):
            return self._context.unchecked(given.for_part(self._context))
        return self._context(**(given if isinstance(given, Mapping) and ours & given.keys() else {}))

    def _context_of_last_step(self, state: Mapping[str, Any]) -> C:
        settings = state.get("settings") or {}
        fields = self._context.model_fields
        return self._context.unchecked({name: value for name, value in settings.items() if name in fields})

    def _runtime(self) -> Runtime[C]:
        return get_runtime(self._context)

    async def _run(self, node: Node[C], fallback: Fallback | None, state: Any) -> dict[str, Any]:  # noqa: ANN401 - each graph has its own state
        runtime, context, name = self._runtime(), self.context(), str(get_config()["metadata"]["langgraph_node"])
        # a parent's settings are checked as the parent's: what is configured for it is allowed in its subgraphs
        await check_allowed(runtime.context if isinstance(runtime.context, BaseContext) else context)
        resources = self._resources or shared_resources()
        meter = _streaming_meter(runtime, name)
        token, prompts_token = current_meter.set(meter), own_prompts.set(context.prompts)
        # an answer that may be withheld is shown once it is given
        undecided = getattr(context, "calibration", "") and name not in ("check_certainty", "cite")
        answer_token = current_answer.set(None if undecided else _answer_stream())
        start = time.perf_counter()
        try:
            fit = await fitted(context, resources)
            if fit is not context:
                await check_allowed(fit)  # what auto has taken, too
            context = fit
            update = dict(await node(state, context, resources))
        except ModelFault as fault:
            attempt = runtime.execution_info.node_attempt if runtime.execution_info else RETRY.max_attempts
            if attempt < RETRY.max_attempts and not fault.attempts:
                raise
            unavailable = ModelUnavailable(fault.endpoint, fault.attempts or attempt, fault.reason)
            if fallback is None:
                raise unavailable from fault
            update = dict(fallback(state, unavailable))
        finally:
            current_meter.reset(token)
            own_prompts.reset(prompts_token)
            current_answer.reset(answer_token)
            seconds = time.perf_counter() - start
            if (spent := spent_by_task.get()) is not None:
                spent[_task()] = _usage(name, meter.calls, seconds)
        if watchers.evidence is not None and update.get("evidence"):
            watchers.evidence(state, update["evidence"], seconds)
        # `prepare` resets `usage` for the thread's new question and is not counted itself
        update.setdefault("usage", _usage(name, meter.calls, seconds))
        if state.get("settings") not in (None, settings := context.model_dump(mode="json")):
            update.setdefault("settings", settings)  # a replay with another context
        return update


def _streaming_meter(runtime: Runtime[Any], node: str) -> Meter:
    task = _task()

    def on_call(call: Call) -> None:
        runtime.stream_writer({"type": "llm_call", "node": node, "task": task, "call": asdict(call)})

    def on_progress(what: str, done: int, total: int) -> None:
        with suppress(RuntimeError):  # this caller's loop may have closed while others wait for the resource
            runtime.stream_writer({"type": "progress", "node": node, "what": what, "done": done, "total": total})

    reader = get_config()["configurable"].get("__pregel_read")
    # a retried node has paid for the calls of its failed attempts, too
    return Meter(on_call, on_progress, [] if reader is None else _calls.setdefault(reader, []))


def _task() -> str:
    """The name of the running task, which a retry keeps."""
    return str(get_config()["configurable"].get("checkpoint_ns", ""))


def _answer_stream() -> AnswerStream | None:
    """The answer of the running node's graph; None if nobody streams messages, and in a graph of inner calls."""
    config = get_config()
    tags = config.get("tags") or []
    handlers = getattr(config.get("callbacks"), "handlers", [])
    # by its name, because its module is private; the handler of LangGraph's `stream_events` takes no chunks
    handler = next((each for each in handlers if type(each).__name__ == "StreamMessagesHandler"), None)
    if handler is None or TAG_NOSTREAM in tags:
        return None
    namespace, _, _ = str(config["metadata"]["langgraph_checkpoint_ns"]).rpartition("|")
    if ANSWERS_FOR_PARENT in tags:
        place = {"langgraph_checkpoint_ns": namespace, "langgraph_node": namespace.rpartition("|")[2].partition(":")[0]}
        config = {**config, "metadata": {**config["metadata"], **place}}
        namespace, _, _ = namespace.rpartition("|")
    context = copy_context()  # a backend may write in another thread
    context.run(var_child_runnable_config.set, config)

    def send(piece: str, message_id: str) -> None:
        context.run(push_message, AIMessageChunk(content=piece, id=message_id), state_key=None)

    return AnswerStream(_answers.setdefault(handler, {}).setdefault(namespace, Shown()), send)


def _usage(node: str, asked: list[Call], seconds: float) -> Usage:
    calls = [call for call in asked if not call.reused]
    prompt, completion = sum(c.prompt_tokens for c in calls), sum(c.completion_tokens for c in calls)
    cost = {"calls": len(calls), "prompt_tokens": prompt, "completion_tokens": completion}
    return {**cost, "nodes": {node: {"runs": 1, **cost, "seconds": seconds}}}  # type: ignore[typeddict-item]
