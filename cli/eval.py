"""`dubito eval`: graphs and settings side by side on the same questions."""

from __future__ import annotations

import itertools
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import UserFault, either
from ..graphs.registry import graph_names
from . import completion
from .options import Chunker, Encoder, K, Llm, Preset
from .screen import help_lines

EXAMPLES = help_lines(
    "Examples",
    "dubito eval vanilla_rag df_rag --dataset hotpotqa:dev.json --limit 30",
    "dubito eval dense_rag seakr:samples=10 --dataset musique:dev.jsonl --corpus own",
    "dubito eval plain=vanilla_rag wide=vanilla_rag:k=20 --dataset questions.jsonl --corpus notes.index",
    'dubito eval df_rag --dataset 2wiki:dev.json --llm "vllm:http://127.0.0.1:8000/v1#my-model" --at-once 32',
    "dubito eval df_rag vanilla_rag --dataset hotpotqa:dev.json --metric seper",
    "dubito eval --resume my.run",
)


def evaluate(
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
            metavar="KIND:FILE", help="Questions with gold answers, repeatable; docs/datasets.md has the kinds."
        ),
    ] = None,
    corpus: Annotated[
        str,
        typer.Option(
            metavar="PATH",
            help="pooled: all paragraphs that come with a dataset's questions; own: each question's own ones; or a "
            "corpus file, folder or index.",
        ),
    ] = "pooled",
    llm: Llm = None,
    encoder: Encoder = None,
    chunker: Chunker = None,
    preset: Preset = None,
    k: K = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of all systems that have it, repeatable."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What to measure beside the answers, repeatable: seper, seper-steps."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only N questions of each dataset, drawn with the seed.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of drawing questions, and of sampling.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder.  [default: eval-DATE-TIME.run]")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on with a run that was broken off, as it was begun.")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="With --resume: ask questions that failed again.")
    ] = False,
    standard: Annotated[
        Literal["squad", "longbench"],
        typer.Option(help="The form in which answers are compared."),
    ] = "squad",
    at_once: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="Questions under way at a time, which a killed run loses.")
    ] = 4,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Ask on a Ray cluster: auto, local, or ray://HOST:PORT.")
    ] = None,
    workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --ray: processes that ask, each with models of its own.")
    ] = 2,
    replica: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A server of the chat model, repeatable: questions are dealt out to them."),
    ] = None,
    traces: Annotated[bool, typer.Option(help="Keep each question's trace.")] = True,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Also send the runs' spans to an OpenTelemetry collector, such as Phoenix."),
    ] = None,
    memory: Annotated[bool, typer.Option(help="Ask a model the same only once, whichever system asks.")] = True,
    on_bad_record: Annotated[
        Literal["refuse", "skip"], typer.Option(help="What to do with a dataset that has broken records.")
    ] = "refuse",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, faults included, and nothing else.")
    ] = False,
) -> None:
    """Put the same questions to several graphs, or to one with several settings, and compare what comes out.

    Each finished question is on disk before the next one begins: a run that was broken off goes on with --resume. The
    folder holds the results, the report (report.md, report.html) and every question's trace.
    """
    from .evaluating import How, Job, evaluate_anew, go_on  # noqa: PLC0415 - what is heavy loads when it is needed

    if otlp is not None:
        from ..models.telemetry import export_spans  # noqa: PLC0415

        export_spans(otlp)
    how = How(at_once, ray, workers, replica or [], retry_failed=retry_failed, as_json=as_json)
    if resume is not None:
        if systems or dataset:
            raise UserFault("--resume goes on with a run as it was begun: leave the systems and datasets out.")
        go_on(resume.expanduser(), how)
        return
    if retry_failed:
        raise UserFault("--retry-failed belongs to --resume DIR: name the run whose failures are to be asked again.")
    job = Job(
        systems=systems or [],
        datasets=dataset or [],
        corpus=corpus,
        options={"llm": llm, "encoder": encoder, "chunker": chunker, "preset": preset, "k": k},
        assignments=assignments or [],
        metrics=metric or [],
        limit=limit,
        seed=seed,
        out=out.expanduser() if out else _free_folder(),
        traces=traces,
        memory=memory,
        on_bad_record=on_bad_record,
        standard=standard,
        command=shlex.join(["dubito", *sys.argv[1:]]),
    )
    evaluate_anew(job, how)


def _free_folder() -> Path:
    """Named after this second, and numbered where a run of the same second is there already."""
    name = time.strftime("eval-%Y%m%d-%H%M%S")
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder for folder in (Path(f"{name}.run") for name in names) if not folder.exists())
