"""Writes the files that follow from the code: `make generate`. `--check` only names those that are out of date.

It writes langgraph.json, the list of graphs in `__init__.py`, the list of packages in pyproject.toml, the drawings
docs/graphs/*.mmd, the pages docs/reference/graphs/*.md and their list in mkdocs.yml. In the other pages of docs/ it
writes the text between `<!-- figure NAME -->`, `<!-- settings NAME -->`, `<!-- settings shared -->`,
`<!-- studio NAME -->` or `<!-- backends all -->` and `<!-- end -->`.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_type_hints

from dubito.errors import UserFault, either
from dubito.graphs import chat, reviewed
from dubito.graphs.registry import graph_named, graph_names
from dubito.nodes.thresholds import threshold_of
from dubito.presenters.presenter import presenter_of
from dubito.state.capability import Capability
from dubito.state.context import BaseContext
from dubito.state.flow import Answered, Question
from dubito.state.mixins import CorpusContext
from dubito.state.seakr import SeaKRContext
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import is_typeddict

if TYPE_CHECKING:
    from dubito.graphs.registry import Graph

ROOT = Path(__file__).parents[1]
GRAPHS = Path("reference/graphs")
MARKER = r"<!-- (?:(?:figure|settings|studio|backends) \w+|end) -->"
PLACE = re.compile(
    rf"(<!-- (figure|settings|studio|backends) (\w+) -->)\n(?:(?!{MARKER}).)*?(?<=\n)(<!-- end -->)", re.DOTALL
)

SHARED = {BaseContext.__module__, CorpusContext.__module__}
"""The modules of the settings that several techniques share."""

FORMS: dict[ModuleType, str] = {
    chat: "A chat: messages in, the answer to the last question out. {about} ({name})",
    reviewed: "A person decides about an uncertain answer: the run stops for the decision. {about} ({name})",
}
"""The modules of `graphs/` that hold other forms of the techniques, and the description of each form."""


def generated(root: Path) -> dict[Path, str]:
    """The text that each file should have; `UserFault` for a graph that nobody describes, and a marker on its own."""
    graphs = {name: graph_named(name) for name in graph_names()}
    for name in graphs:
        if not presenter_of(name).about:
            raise UserFault(
                f"The graph '{name}' has no presenter, or one that does not say what the graph does: define "
                f"`presenter` with its `about` in presenters/{name}.py, as in examples/crag/presenters/crag.py."
            )
    files = {
        root / "langgraph.json": langgraph_json(graphs),
        root / "__init__.py": package((root / "__init__.py").read_text(encoding="utf-8"), list(graphs)),
        root / "pyproject.toml": project((root / "pyproject.toml").read_text(encoding="utf-8"), root),
        root / "mkdocs.yml": navigation((root / "mkdocs.yml").read_text(encoding="utf-8"), list(graphs)),
        **reference(graphs, root / "docs"),
    }
    for name, graph in graphs.items():
        files[root / "docs" / "graphs" / f"{name}.mmd"] = graph.get_graph(xray=True).draw_mermaid()
    for page in sorted((root / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if alone := re.search(MARKER, PLACE.sub("", text)):
            raise UserFault(
                f"{page.relative_to(root)} has '{alone[0]}' on its own: each marker stands on a line of its own, and "
                "each place ends with <!-- end --> before the next begins."
            )
        if PLACE.search(text):
            files[page] = PLACE.sub(lambda at: "\n\n".join([at[1], part(graphs, at[2], at[3]), at[4]]), text)
    return files


def langgraph_json(graphs: dict[str, Graph]) -> str:
    """The server's configuration: every graph, its chat form and its reviewed form. Agents read the descriptions."""
    entries = {name: _entry(f"dubito.graphs.{name}:graph", "{about} ({name})", name) for name in graphs}
    for module, description in FORMS.items():
        for name, form in vars(module).items():
            if isinstance(form, CompiledStateGraph):
                entries[form.name] = _entry(f"{module.__name__}:{name}", description, name)
    written = {
        "dependencies": ["."],
        "graphs": dict(sorted(entries.items())),
        "http": {"app": "dubito.ui.door:app"},
        "env": ".env",
    }
    return json.dumps(written, indent=2, ensure_ascii=False) + "\n"


def _entry(path: str, description: str, graph: str) -> dict[str, str]:
    shown = presenter_of(graph)
    return {"path": path, "description": description.format(name=shown.name, about=shown.about)}


def package(text: str, names: list[str]) -> str:
    """`__init__.py` with these graphs: type checkers know no graph that is not named there."""
    imports = "".join(f"    from .graphs.{name} import graph as {name}\n" for name in names)
    exports = "".join(f'    "{name}",\n' for name in ["__version__", *names])
    text = re.sub(r"(?<=if TYPE_CHECKING:\n)(    from .*\n)+", imports, text)
    return re.sub(r"(?<=__all__ = \[\n)(    .*\n)+", exports, text)


def project(text: str, root: Path) -> str:
    """pyproject.toml with every package below the root, which is the package `dubito` itself."""
    folders = {file.parent.relative_to(root) for file in root.rglob("__init__.py")} | {Path("examples/sample")}
    names = sorted(".".join(["dubito", *folder.parts]) for folder in folders if not _is_hidden(folder))
    listed = "".join(f'    "{name}",\n' for name in names)
    return re.sub(r"(?<=\npackages = \[\n)(    .*\n)+", listed, text)


def navigation(text: str, names: list[str]) -> str:
    """mkdocs.yml with a page of the reference for each graph."""
    listed = "".join(f"          - {GRAPHS}/{name}.md\n" for name in names)
    return re.sub(r"(?<=      - Graphs:\n)( {10}- .*\n)+", listed, text)


def reference(graphs: Mapping[str, Graph], docs: Path) -> dict[Path, str]:
    """A page for each graph: figure, `build`, input, settings and output. A shared class is on the first page only."""
    texts = {page.name: page.read_text(encoding="utf-8") for page in sorted(docs.glob("*.md"))}
    page_of: dict[type, str] = {Question: "../state.md", Answered: "../state.md"}
    pages = {}
    for name, graph in graphs.items():
        parts = [f"# {name}", presenter_of(name).about]
        parts += [
            f"[The technique](../../{page})." for page, text in texts.items() if f"<!-- figure {name} -->" in text
        ]
        parts += [f'```mermaid\n--8<-- "{name}.mmd"\n```', f"::: dubito.graphs.{name}.build"]
        builder: Any = graph.builder
        schemas = {"Input": builder.input_schema, "Settings": builder.context_schema, "Output": builder.output_schema}
        for title, schema in schemas.items():
            if schema in page_of:
                parts.append(f"{title}: [{schema.__name__}]({page_of[schema]}#{_path(schema)}).")
            else:
                parts.append(f"::: {_path(schema)}")
        records = _records(builder.output_schema)
        parts += [f"::: {_path(record)}" for record in records if record not in page_of]
        page_of = dict.fromkeys([*schemas.values(), *records], f"{name}.md") | page_of
        pages[docs / GRAPHS / f"{name}.md"] = "\n\n".join(parts) + "\n"
    return pages


def _path(schema: type) -> str:
    return f"{schema.__module__}.{schema.__qualname__}"


def _records(schema: Any) -> list[type]:  # noqa: ANN401 - typing's hints
    """The TypedDicts of the schema's own module that it inherits from or has in its values."""
    pending = [*getattr(schema, "__orig_bases__", ()), *get_type_hints(schema).values()]
    records: dict[type, None] = {}
    for hint in pending:  # grows while it is read
        pending.extend(get_args(hint))
        if is_typeddict(hint) and hint.__module__ == schema.__module__ and hint not in records:
            records[hint] = None
            pending.extend(get_type_hints(hint).values())
    return list(records)


def _is_hidden(folder: Path) -> bool:
    return any(part.startswith(".") or part in {"build", "dist", "tests"} for part in folder.parts)


def figure(graph: Graph) -> str:
    """The graph as a Mermaid fence."""
    return f"```mermaid\n{graph.get_graph().draw_mermaid().strip()}\n```"


def settings(graph: Graph) -> str:
    """The settings that only this technique has as a table, and a sentence with the names of the shared ones."""
    context: Any = graph.builder.context_schema
    shared = [name for name in context.in_order() if is_shared(context, name)]
    rows = [
        f"| `{name}` | `{getattr(context(), name)}` | {context.model_fields[name].description} |"
        for name in context.in_order()
        if name not in shared
    ]
    table = "\n".join(["| setting | default | meaning |", "|---|---|---|", *rows])
    names = ", ".join(f"`{name}`" for name in shared)
    return (
        f"{table}\n\n`{graph.name}` also has the [shared settings](settings.md#shared-settings) {names}. "
        f"`dubito settings {graph.name}` lists every setting, its value and what it may be; "
        f"[the reference]({GRAPHS}/{graph.name}.md) has the types.{''.join(_of_parts(graph))}"
    )


def _of_parts(graph: Graph) -> Iterator[str]:
    """Which of a technique's settings a graph has that is a part of it."""
    context: Any = graph.builder.context_schema
    for name in [name for name, _ in graph.get_subgraphs() if name in graph_names()]:
        own: Any = graph_named(name).builder.context_schema
        if issubclass(context, own):
            lacking = [f"`{one}`" for one in context.in_order() if one not in own.model_fields]
            yield f" The graph `{name}`, a part of it, has all of these but {', '.join(lacking)}."


def is_shared(context: Any, name: str) -> bool:  # noqa: ANN401 - a type of settings
    """Has the setting the meaning that the modules of shared settings give it?"""
    return any(
        of.model_fields[name].description == context.model_fields[name].description
        for of in context.__mro__
        if of.__module__ in SHARED and name in inspect.get_annotations(of)
    )


def shared_settings(graphs: Mapping[str, Graph]) -> str:
    """Each shared setting with its default in each graph, as a table. One name may have several meanings."""
    defaults: dict[tuple[str, str], dict[str, str]] = {}
    for graph in graphs.values():
        context: Any = graph.builder.context_schema
        for name, field in context.model_fields.items():
            if is_shared(context, name):
                row = defaults.setdefault((name, field.description), {})
                row[graph.name] = f"`{getattr(context(), name)}`"
    rows = [
        f"| `{name}` | {_by_graph(values)} | {_listed(list(values), list(graphs))} | {meaning} |"
        for (name, meaning), values in sorted(defaults.items(), key=lambda row: -len(row[1]))
    ]
    return "\n".join(["| setting | default | graphs | meaning |", "|---|---|---|---|", *rows])


def _by_graph(values: Mapping[str, str]) -> str:
    """The most frequent value, then each other one with its graphs."""
    common, *others = (value for value, _ in Counter(values.values()).most_common())
    of = {value: [graph for graph in values if values[graph] == value] for value in others}
    return "; ".join([common, *(f"{value} in {_listed(names, [])}" for value, names in of.items())])


def _listed(names: Sequence[str], everything: Sequence[str]) -> str:
    """The graphs' names, or the shorter list of those that are missing."""
    missing = [name for name in everything if name not in names]
    if everything and len(missing) < len(names):
        return f"all but {_listed(missing, [])}" if missing else "all"
    return ", ".join(f"`{name}`" for name in names)


FIELDS = 5
"""Of a graph's form, those that the page about Studio shows."""


def studio(graph: Graph) -> str:
    """What the server gives Studio to show: the graph, the first fields of its form, and each node with its fields."""
    schema: Any = graph.get_context_jsonschema()
    prompts = {name: field for name, field in schema["properties"].items() if field.get("langgraph_type") == "prompt"}
    fields = [field for name, field in schema["properties"].items() if name not in prompts]
    nodes = [node for node in graph.nodes if node != "__start__"]
    at_nodes = [(node, _at(node, fields), _at(node, [*prompts.values()])) for node in nodes]
    rows = [f"| {one['title']} | `{one['default']}` | {_takes(one)} |" for one in fields[:FIELDS]]
    return "\n\n".join(
        [
            figure(graph),
            f"The form has {len(fields)} fields and begins with:",
            "\n".join(["| field | at first | takes |", "|---|---|---|", *rows]),
            f"The settings and the {len(prompts)} prompts at each node (settings of the whole run have none):",
            "\n".join(
                [
                    "| node | settings | prompts |",
                    "|---|---|---|",
                    *(f"| `{node}` | {own} | {asked} |" for node, own, asked in at_nodes if own or asked),
                ]
            ),
        ]
    )


def _at(node: str, fields: Sequence[Mapping[str, Any]]) -> str:
    """The titles of the fields that stand at a node."""
    return ", ".join(one["title"].removeprefix("Prompt: ") for one in fields if node in one.get("langgraph_nodes", ()))


def _takes(field: Mapping[str, Any]) -> str:
    """The values of a field of a form."""
    if "enum" in field:
        return "one of " + ", ".join(f"`{value}`" for value in field["enum"])
    if field["type"] in {"integer", "number"}:
        kind = "a whole number" if field["type"] == "integer" else "a number"
        return f"{kind} from {field['minimum']:,} to {field['maximum']:,}"
    return {"boolean": "on or off", "string": "a text"}[field["type"]]


class Backend(NamedTuple):
    """A kind of chat model. title: for the table; name: such as a setting has."""

    title: str
    name: str
    capabilities: frozenset[Capability]


_LOGPROBS: frozenset[Capability] = frozenset({"logprobs", "seed"})
_VLLM: frozenset[Capability] = _LOGPROBS | {"option_probabilities", "score"}
_STATES: frozenset[Capability] = _VLLM | {"hidden_states"}

BACKENDS: Mapping[str, Backend] = {
    "plain": Backend("a server without log-probabilities", "openai:http://host/v1#my-model", frozenset({"seed"})),
    "logprobs": Backend("a server with them", "openai:http://host/v1#my-model", _LOGPROBS),
    "langchain": Backend("LangChain", "langchain:ChatOpenAI#my-model", frozenset()),
    "vllm": Backend("vLLM", "vllm:http://host/v1#my-model", _VLLM),
    "states": Backend("vLLM with `&states=`", "vllm:http://host/v1#my-model&states=http://host/v1", _STATES),
    "engine": Backend("`engine:`", "engine:my-model", _STATES),
    "weights": Backend("`hf:`, `gguf:`", "hf:my-model", _STATES | {"energy"}),
    "embedded": Backend("`embedded`", "embedded", _STATES | {"energy"}),
}


def backends(graphs: Mapping[str, Graph]) -> str:
    """Which graph works with which chat model, all settings at their defaults, as a table."""
    rows = {
        name: [works_with(graph.builder.context_schema, backend) for backend in BACKENDS.values()]
        for name, graph in graphs.items()
    }
    titles = "".join(f" {backend.title} |" for backend in BACKENDS.values())
    lines = [
        f"| `{name}` |" + "".join(f" {cell} |" if cell in {"yes", "no"} else f" `{cell}` |" for cell in cells)
        for name, cells in rows.items()
    ]
    return "\n".join([f"| |{titles}", "|---|" + "---|" * len(BACKENDS), *lines])


def works_with(settings: Any, backend: Backend) -> str:  # noqa: ANN401 - a type of settings
    """`yes`, or the evaluator or estimator that auto takes; `no`, or the setting that a value must be given for."""
    context = settings().fitted(backend.capabilities | {"encoder"})
    if context.refusal(backend.name, backend.capabilities):
        return "no"
    if isinstance(context, SeaKRContext):
        try:
            threshold_of(context, backend.name)
        except UserFault:
            return "set retrieval_threshold"
    return next((context.chosen[name]["value"] for name in ("evaluator", "estimator") if name in context.chosen), "yes")


def part(graphs: Mapping[str, Graph], kind: str, name: str) -> str:
    """A generated part of a page."""
    if kind == "backends":
        return backends(graphs)
    if (kind, name) == ("settings", "shared"):
        return shared_settings(graphs)
    if name not in graphs:
        raise UserFault(f"<!-- {kind} {name} --> names no graph: use {either(list(graphs))}.")
    return {"figure": figure, "settings": settings, "studio": studio}[kind](graphs[name])


def stale(root: Path) -> Iterator[Path]:
    """The files that differ from the code; drawings and pages of graphs that are gone."""
    files = generated(root)
    docs = root / "docs"
    yield from (file for file, text in files.items() if not file.exists() or file.read_text(encoding="utf-8") != text)
    of_graphs = sorted([*(docs / "graphs").glob("*.mmd"), *(docs / GRAPHS).glob("*.md")])
    yield from (file for file in of_graphs if file not in files)


def write(root: Path) -> None:
    """Write the files that are out of date; delete the drawings and pages of graphs that are gone."""
    files = generated(root)
    for file in list(stale(root)):
        file.write_text(files[file], encoding="utf-8") if file in files else file.unlink()


def main() -> None:
    """Write the files, or with `--check` name those that are out of date."""
    try:
        if sys.argv[1:] != ["--check"]:
            write(ROOT)
        elif names := ", ".join(str(file.relative_to(ROOT)) for file in stale(ROOT)):
            sys.exit(f"Out of date: {names}. Run `make generate` and commit what it writes.")
    except UserFault as fault:
        sys.exit(str(fault))


if __name__ == "__main__":
    main()
