"""`dubito ui`: a page on this machine to ask questions on and watch them being answered."""

from __future__ import annotations

from typing import Annotated

import typer

from .screen import help_lines

EXAMPLES = help_lines(
    "Examples",
    "dubito ui",
    "dubito ui --corpus notes/ --corpus papers.index --port 8701",
    'dubito ui --llm "vllm:http://127.0.0.1:8000/v1#my-model"',
    "dubito ui --allow judge=nli:my-cross-encoder --allow encoder=st:my-encoder",
)


def ui(
    *,
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 takes any that is free.")
    ] = 8700,
    corpus: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="A corpus that may be chosen beside 'sample'; repeatable."),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", envvar="DUBITO_LLM", help="The chat model to begin with; 'embedded' may be chosen too."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTING=VALUE",
            help="Another file, folder or server that a setting may name (llm, encoder, judge, ...); repeatable.",
        ),
    ] = None,
    at_once: Annotated[int, typer.Option("--at-once", metavar="N", min=1, help="Questions under way at most.")] = 2,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address to listen on; see --everybody-may-ask.")
    ] = "127.0.0.1",
    everybody_may_ask: Annotated[
        bool,
        typer.Option(
            "--everybody-may-ask",
            help="With a --host that others can reach: whoever reaches it may ask the models and read the corpora, "
            "without a password.",
        ),
    ] = False,
) -> None:
    """Serve one page on this machine, until Ctrl-C: ask, watch the steps, read the answer and its trace.

    Only the corpora and models that are named here can be chosen on it, beside 'sample' and 'embedded'. Questions,
    answers and traces are kept in memory alone, and nothing is sent anywhere but to the models.
    """
    from .ui.serving import Job, serve  # noqa: PLC0415 - what is heavy loads when it is needed

    serve(Job(host, port, corpus or [], llm, allow or [], at_once, everybody_may_ask=everybody_may_ask))
