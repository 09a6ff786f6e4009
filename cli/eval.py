"""`dubito eval`: graphs and settings side by side on the same questions."""

import itertools
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ..config import config
from ..errors import UserFault, either
from ..graphs.registry import graph_names
from . import completion
from .options import (
    AnswerStandard,
    AsJson,
    AtOnce,
    BadRecord,
    ConfigFile,
    Otlp,
    Quiet,
    Repair,
    refuse_others,
    typed_options,
    with_graph_options,
)

EXAMPLES = (
    "dubito eval vanilla_rag df_rag --dataset hotpotqa:dev.json --limit 30",
    "dubito eval dense_rag seakr:samples=10 --dataset musique:dev.jsonl --corpus own",
    "dubito eval plain=vanilla_rag wide=vanilla_rag:k=20 --dataset questions.jsonl --corpus notes.index",
    'dubito eval df_rag --dataset 2wiki:dev.json --llm "vllm:http://127.0.0.1:8000/v1#my-model" --at-once 32',
    "dubito eval df_rag vanilla_rag --dataset hotpotqa:dev.json --metric seper",
    "dubito eval vanilla_rag --calibration vanilla_rag.calibration.json --dataset new.jsonl --corpus notes.index",
    "dubito eval --resume my.run",
    "dubito eval --resume my.run --metric seper",
    "dubito eval --config my.run/run.yaml",
)

MAY_DIFFER = {
    "resume", "retry_failed", "repair", "config_file", "quiet", "as_json",
    "at_once", "ray", "workers", "replica", "otlp", "metric",
}  # fmt: skip
"""The options of a resumed run. It has all others from its folder."""


@with_graph_options
def evaluate(
    context: typer.Context,
    systems: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SYSTEM...",
            help=f"GRAPH, GRAPH:name=value,... or NAME=GRAPH:...; a GRAPH is {either(graph_names())}.",
            autocompletion=completion.graphs,
        ),
    ] = None,
    *,
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:FILE", help="Questions with gold answers, repeatable; docs/datasets.md lists the kinds."
        ),
    ] = None,
    corpus: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="pooled: the paragraphs of all questions of a dataset; own: each question's own paragraphs; or a "
            "corpus file, folder or index.",
        ),
    ] = "pooled",
    settings: Mapping[str, str | None],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting for all systems that have it, repeatable."),
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Systems of its graph give only the answers that it allows, and take its settings where no other is "
            "given; repeatable.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further metric, repeatable: seper, seper-steps, llm-judge, bertscore. With --resume: beside those "
            "that the run has.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only N questions of each dataset, drawn with the seed.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="The seed for drawing questions and for sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder.  [default: eval-DATE-TIME.run]")
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with an interrupted run.")] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: ask failed questions again.")
    ] = False,
    repair: Repair = False,
    standard: AnswerStandard = "squad",
    at_once: AtOnce = 4,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Ask on a Ray cluster: auto, local, or ray://HOST:PORT.")
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --ray: worker processes, each with its own models.")
    ] = 2,
    replica: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A server of the chat model, repeatable: each question goes to one of them."),
    ] = None,
    traces: Annotated[bool, typer.Option(help="Keep each question's trace.")] = True,
    otlp: Otlp = None,
    memory: Annotated[bool, typer.Option(help="Cache model calls, so that systems share equal calls.")] = True,
    on_bad_record: BadRecord = "refuse",
    config_file: ConfigFile = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Ask several graphs, or one graph with several settings, the same questions, and compare their answers.

    Each outcome is on disk as soon as it is known, so an interrupted run goes on with --resume. The run's folder holds
    the outcomes, the report (report.md, report.html), the traces, and run.yaml, which repeats the run with --config.
    """
    from . import evaluating  # noqa: PLC0415 - heavy imports

    if otlp is not None:
        from ..resources.telemetry import export_spans  # noqa: PLC0415

        export_spans(otlp)
    options = evaluating.RunOptions(
        at_once, ray, workers, replica or [], retry_failed=retry_failed, repair=repair, quiet=quiet, as_json=as_json
    )
    typed = typed_options(context)
    if "workers" in typed and ray is None:
        raise UserFault("--workers needs --ray ADDRESS: name the cluster, or leave --workers out.")
    if resume is not None:
        refuse_others(context, MAY_DIFFER, "--resume goes on with a run as it was made")
        added = (metric or []) if "metric" in typed else []
        evaluating.resume(resume.expanduser(), added, options, as_many_at_once="at_once" not in typed)
        return
    if retry_failed:
        raise UserFault("--retry-failed needs --resume DIR: name the run whose failed questions are asked again.")
    if repair:
        raise UserFault("--repair needs --resume DIR: name the run whose results are damaged.")
    evaluating.evaluate_anew(
        out.expanduser() if out else _free_folder(),
        systems or config().tables.get("eval", {}).get("systems", {}),
        dataset or [],
        corpus=corpus,
        corpus_is_typed="corpus" in typed,
        settings=settings,
        assignments=assignments or [],
        calibrations=calibration or [],
        limit=limit,
        seed=seed,
        on_bad_record=on_bad_record,
        kept={
            "command": shlex.join(["dubito", *sys.argv[1:]]),
            "metrics": metric or [],
            "traces": traces,
            "memory": memory,
            "at_once": at_once,
            "standard": standard,
        },
        options=options,
    )


def _free_folder() -> Path:
    """A folder named after this second, with a number if that folder exists."""
    name = time.strftime("eval-%Y%m%d-%H%M%S")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder for folder in (Path(f"{name}.run") for name in names) if not folder.exists())
