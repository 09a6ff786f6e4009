"""dubito: published retrieval-augmented-generation techniques as LangGraph state machines.

    from dubito import df_rag
    df_rag.invoke({"question": "..."})["answer"]

Each graph is loaded when it is first used; `dubito.graphs` holds their builders.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graphs.cot import graph as cot
    from .graphs.dense import graph as dense
    from .graphs.dense_rag import graph as dense_rag
    from .graphs.df_rag import graph as df_rag
    from .graphs.escalate import graph as escalate
    from .graphs.flare import graph as flare
    from .graphs.ircot import graph as ircot
    from .graphs.iter_retgen import graph as iter_retgen
    from .graphs.neighbourhood import graph as neighbourhood
    from .graphs.seakr import graph as seakr
    from .graphs.seper import graph as seper
    from .graphs.sunar import graph as sunar
    from .graphs.vanilla_rag import graph as vanilla_rag

__version__ = "0.1.0"
__all__ = [
    "__version__",
    "cot",
    "dense",
    "dense_rag",
    "df_rag",
    "escalate",
    "flare",
    "ircot",
    "iter_retgen",
    "neighbourhood",
    "seakr",
    "seper",
    "sunar",
    "vanilla_rag",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    from .graphs.registry import graph_names  # noqa: PLC0415 - `import dubito` reads no other file

    if name in graph_names():
        return import_module(f".graphs.{name}", __name__).graph
    raise AttributeError(f"module 'dubito' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
