"""Escalate: ask the cheapest graph first, and a dearer one only while the answer is not certain enough.

prepare ─> RUNG ─> assess ─┬─ certain, or none is left ─> conclude
             ^             │
             └─ next rung ─┘

Each rung is a graph (`RUNGS`). What an earlier rung has asked of a model or a retriever is not asked again. A rung that
fails is recorded, and the next one is taken. If no rung is certain enough, the answer is withheld. After selective
prediction (El-Yaniv and Wiener 2010) and BalanceRAG (arXiv 2605.20084).
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.config import get_config
from langgraph.runtime import get_runtime

from ..errors import DubitoError
from ..models.metering import spent_by_task
from ..models.question_memory import remembering
from ..nodes.escalate import assess, begin_cascade, conclude
from ..resources.resources import Resources
from ..state.escalate import RUNGS, EscalateContext, EscalateOutput, EscalateState, rung_context
from ..state.flow import Question
from ..state.records import NO_USAGE, Usage, add_usage
from .registry import graph_named
from .wiring import Machine, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .registry import Graph


_known: WeakKeyDictionary[Any, dict[str, dict[object, Any]]] = WeakKeyDictionary()
"""What rungs have asked: by LangGraph's writer of custom events, of which a run has one, then by the cascade in it."""


class RungRunnable(RunnableLambda[Any, Any]):
    """A graph as a rung: a failure is its result, with its cost. LangGraph and Studio find the graph in `deps`."""

    def __init__(self, graph: Graph, context: Callable[[], EscalateContext]) -> None:
        """graph: the rung; context: gives the settings of the running cascade."""
        super().__init__(lambda state: state, name=graph.name)
        self._graph, self._context = graph, context

    @property
    def deps(self) -> list[Runnable[Any, Any]]:
        """The graph."""
        return [self._graph]

    def invoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002, ANN401
        """The graph's output, or why it has none."""
        with _counted() as spent, remembering(_known_in_run()):
            try:
                return self._graph.invoke(input, config, context=self._context())
            except DubitoError as fault:
                return {"failure": str(fault), "usage": reduce(add_usage, spent.values(), NO_USAGE)}

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **more: Any) -> Any:  # noqa: A002, ANN401
        """The graph's output, or why it has none."""
        with _counted() as spent, remembering(_known_in_run()):
            try:
                return await self._graph.ainvoke(input, config, context=self._context())
            except DubitoError as fault:
                return {"failure": str(fault), "usage": reduce(add_usage, spent.values(), NO_USAGE)}


@contextmanager
def _counted() -> Iterator[dict[str, Usage]]:
    """What the nodes cost that run meanwhile, by task."""
    spent: dict[str, Usage] = {}
    token = spent_by_task.set(spent)
    try:
        yield spent
    finally:
        spent_by_task.reset(token)


def _known_in_run() -> dict[object, Any]:
    """What the earlier rungs of the running cascade have asked. A resumed run begins anew."""
    cascade, _, _ = str(get_config()["metadata"]["langgraph_checkpoint_ns"]).rpartition("|")
    return _known.setdefault(get_runtime().stream_writer, {}).setdefault(cascade, {})


def build(
    resources: Resources | None = None, rungs: Sequence[str] = RUNGS
) -> Machine[EscalateState, EscalateContext, Question, EscalateOutput]:
    """Wire the machine. resources: live objects that replace the names in the context.

    rungs: the graphs that the setting `rungs` may name.
    """
    graph = Machine(EscalateState, EscalateContext, Question, EscalateOutput, resources)
    graph.add_prepare(begin_cascade)
    graph.add_steps(assess, conclude)
    graph.add_conditional_edges("prepare", next_rung, [*rungs])
    for name in rungs:
        rung_context(name)
        # an answer is shown once it is certain enough
        graph.add_node(name, RungRunnable(silent(graph_named(name, resources)), graph.context))
        graph.add_edge(name, "assess")
    graph.add_conditional_edges("assess", next_rung, [*rungs, "conclude"])
    graph.add_cite("conclude")
    return graph


def next_rung(state: EscalateState) -> str:
    """Which rung is tried next, if any?"""
    return state["next_rung"] or "conclude"


graph = build().compile(name="escalate")
