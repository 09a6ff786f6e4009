"""Which settings the code of each node reads: Studio shows them there."""

import dis
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FunctionType

from ..resources.resources import Resources
from ..state.context import BaseContext
from ..state.mixins import CorpusContext

WHOLE_RUN = frozenset(CorpusContext.model_fields) - {"max_answer_tokens"}
"""The settings that belong to no node: chat model, encoder and corpus, which every node may use, and how they are used.

Which model a node asks is the business of `Resources`; a judge or a re-ranker belongs to the nodes that ask for it.
"""

LOOK_UPS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST"}
"""What takes an attribute of a variable; the last is `getattr` with a given name."""


@lru_cache(maxsize=1024)
def settings_read(function: Callable[..., object], context: type[BaseContext]) -> frozenset[str]:
    """The settings that a function reads from its argument `context`, itself or in the functions that it hands it to.

    This looks through the bytecode and reads no source file: a server asks for it on its event loop. Settings that a
    method of `BaseContext` looks up are left out.
    """
    read: set[str] = set()
    seen: set[tuple[FunctionType, type | None]] = set()
    pending: list[tuple[FunctionType, type | None]] = [(one, None) for one in _functions([function])]
    while pending:
        one, owner = pending.pop()
        if (one, owner) in seen:
            continue
        seen.add((one, owner))
        holders = {"context": context, "resources": Resources, "self": owner}
        for code in _with_inner(one.__code__):
            for variable, name in _looked_up(code):
                holder = holders.get(variable)
                if holder is context and name in context.model_fields:
                    read.add(name)
                elif holder is Resources or (holder is context and not hasattr(BaseContext, name)):
                    pending += [(method, holder) for method in _functions([getattr(holder, name, None)])]
            named = _functions(one.__globals__.get(name) for name in code.co_names)
            pending += [(handed, None) for handed in named if "context" in handed.__code__.co_varnames]
    return frozenset(read - WHOLE_RUN)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and that of the functions inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _with_inner(part)


def _looked_up(code: CodeType) -> Iterator[tuple[str, str]]:
    """Each variable of which an attribute is taken, with the attribute; also by `getattr` under a given name."""
    for before, after in pairwise(dis.get_instructions(code)):
        if before.opname.endswith(("LOAD_FAST", "LOAD_DEREF")) and after.opname in LOOK_UPS:
            # one instruction of Python 3.13 loads two variables
            yield before.argval[-1] if isinstance(before.argval, tuple) else before.argval, str(after.argval)


def _functions(found: Iterable[object]) -> Iterator[FunctionType]:
    """The functions among these objects: those of properties, tables and what is wrapped, too."""
    for one in found:
        inner = one.fget if isinstance(one, property) else getattr(one, "__wrapped__", one)
        if isinstance(inner, FunctionType):
            yield inner
        elif isinstance(inner, Mapping):
            yield from _functions(inner.values())
