"""Options of several commands."""

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ..config import COMMANDS, config
from ..errors import UserFault, either
from ..graphs.registry import graph_names
from ..settings import settings
from . import completion

NOT_IN_A_FILE = frozenset({"as_json", "assignments", "chunker", "config_file", "encoder", "help", "k", "llm", "preset"})
"""Options that the table of a command does not take: settings of graphs have places of their own in the file."""


def _use_config(ctx: typer.Context, file: Path | None) -> Path | None:
    """Read the configuration file; its table of this command gives the options that are not typed."""
    if file is not None:
        # for the processes that are started from here too; `Commands.main` takes it back
        os.environ["DUBITO_CONFIG"] = str(file.expanduser().absolute())
        config.cache_clear()
        settings.cache_clear()
    settings()  # told here if it cannot be used, and not in the middle of the work
    for command in {context.info_name for context in _lineage(ctx)} & set(COMMANDS):
        ctx.default_map = dict(_options_of_file(ctx, command))
    return file


def _lineage(ctx: typer.Context) -> list[Any]:
    """The command's context and those above it: `dubito calibrate retrieval_threshold` is under `calibrate`."""
    return [ctx, *_lineage(ctx.parent)] if ctx.parent else [ctx]  # type: ignore[arg-type]


def _options_of_file(ctx: typer.Context, command: str) -> Mapping[str, Any]:
    """The options in the command's table, each checked as if it were typed."""
    file = config()
    options = {option.name: option for option in ctx.command.params if option.name not in NOT_IN_A_FILE}
    entries = file.check_names(command, options)
    for name, value in entries.items():
        if isinstance(value, dict):
            continue  # systems with their settings, which `dubito eval` reads itself
        try:
            options[name].process_value(ctx, value)
        except Exception as fault:
            told = getattr(fault, "message", None) or str(fault)
            raise UserFault(f"{file.place(name, command)} cannot be used: {told.rstrip('.')}.") from None
    return {name: value for name, value in entries.items() if not isinstance(value, dict)}


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="DUBITO_CONFIG",
        is_eager=True,
        callback=_use_config,
        help="The configuration file, .toml or .yaml.  [default: dubito.toml in this folder, if there is one]",
    ),
]
GraphName = Annotated[
    str, typer.Argument(metavar="GRAPH", help=f"{either(graph_names())}.", autocompletion=completion.graphs)
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing while the work goes on.")]
Corpus = Annotated[
    str | None,
    typer.Option(metavar="PATH", help="'sample', an index folder, or a corpus file or folder."),
]
Llm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="embedded, ollama:MODEL, http://HOST:PORT, vllm:URL#model, engine:DIR, openai:URL#model, hf:DIR, "
        "gguf:FILE.",
    ),
]
Encoder = Annotated[str | None, typer.Option(metavar="NAME", help="embedded, st:DIR, openai:URL#model.")]
Chunker = Annotated[str | None, typer.Option(metavar="NAME", help="words:N, tokens:SIZE/OVERLAP or semantic:TAU/TMAX.")]
Preset = Annotated[str | None, typer.Option(metavar="NAME", help="embedded (small installed models) or paper.")]
K = Annotated[str | None, typer.Option("--k", "-k", metavar="N", help="The number of chunks to answer from.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any other setting of the graph, repeatable; an unknown name lists all settings.",
        autocompletion=completion.settings,
    ),
]
Prompts = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="A folder of your own prompts, which `dubito prompts --out` begins."),
]
Answers = Annotated[
    list[str] | None, typer.Option("--answer", metavar="TEXT", help="A right answer to the question; repeatable.")
]
AtOnce = Annotated[
    int, typer.Option(metavar="N", min=1, max=1024, help="Questions at a time; a killed run loses only these.")
]
QuestionsAtOnce = Annotated[
    int, typer.Option("--at-once", metavar="N", min=1, help="The maximum number of questions at a time.")
]
EverybodyMayAsk = Annotated[
    bool,
    typer.Option(
        "--everybody-may-ask",
        help="Allow a --host that others can reach without a token in DUBITO_TOKEN: they may ask the models and "
        "read the corpora.",
    ),
]
BadRecord = Annotated[
    Literal["refuse", "skip"], typer.Option(help="Refuse a file with broken records, or skip these records.")
]
Otlp = Annotated[
    str | None, typer.Option(metavar="URL", help="Send spans to an OpenTelemetry collector, such as Phoenix.")
]
Repair = Annotated[
    bool,
    typer.Option(
        "--repair", help="Keep the readable outcomes of a damaged file, move the file aside, and ask the others again."
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run of dubito eval.")]
AnswerStandard = Annotated[
    Literal["squad", "longbench"], typer.Option(help="How F1 counts answers that normalising leaves empty.")
]
OtherStandard = Annotated[
    Literal["squad", "longbench"] | None,
    typer.Option(help="How F1 counts answers that normalising leaves empty.  [default: as the run was made]"),
]
GRAPH_OPTIONS = {
    "corpus": Corpus,
    "llm": Llm,
    "encoder": Encoder,
    "chunker": Chunker,
    "preset": Preset,
    "prompts": Prompts,
    "k": K,
}
"""The settings of a graph that have an option of their own."""


def with_graph_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `GRAPH_OPTIONS` in place of its parameter `settings`, which gets their values by name.

    An option that is not typed has the value None. A parameter of the command itself is not replaced.
    """
    own = inspect.signature(command, eval_str=True).parameters
    names = [name for name in GRAPH_OPTIONS if name not in own]
    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=GRAPH_OPTIONS[name]) for name in names]

    @wraps(command)
    def with_settings(**given: Any) -> None:  # noqa: ANN401
        command(settings={name: given.pop(name) for name in names}, **given)

    parameters = [part for each in own.values() for part in (options if each.name == "settings" else [each])]
    set_parameters(with_settings, parameters)
    return with_settings


def typed_options(context: typer.Context) -> dict[str, str]:
    """The options and arguments that are typed, as `--help` names them, by parameter."""
    names: dict[str, str] = {}
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE":
            is_option = option.param_type_name == "option"
            shown = "/".join([option.opts[0], *option.secondary_opts]) if is_option else option.metavar
            names[str(option.name)] = str(shown)
    return names


def refuse_others(context: typer.Context, allowed: Collection[str], reason: str) -> None:
    """Raise `UserFault` if an option or argument is typed that is not allowed. reason: a clause that says why not."""
    if others := [shown for name, shown in typed_options(context).items() if name not in allowed]:
        raise UserFault(f"{reason}: leave {', '.join(others)} out.")


def set_parameters(command: Any, parameters: Sequence[Parameter]) -> None:  # noqa: ANN401 - any function
    """Replace the parameters of a command, which typer reads."""
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")]
