"""One model served by several servers: which question goes to which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import UserFault
from .bench import Task


def spread(tasks: Sequence[Task], urls: Sequence[str]) -> list[Task]:
    """The same tasks, the questions dealt out to servers in turn.

    All systems ask a question of one server, whose prefix cache then knows its passages. urls: such as
    http://host:8000/v1, each serving the model that the settings name. Raises `UserFault` for a task whose chat model
    is on no server.
    """
    places = {question: place for place, question in enumerate(dict.fromkeys(task.question for task in tasks))}
    return [_on(task, urls[places[task.question] % len(urls)]) for task in tasks]


def _on(task: Task, url: str) -> Task:
    kind, _, rest = str(task.context["llm"]).partition(":")
    if kind not in {"vllm", "openai"}:
        raise UserFault(
            f"--replica deals questions out to servers, and the chat model of {task.system} is "
            f"'{task.context['llm']}': use it with --llm vllm:URL#model."
        )
    model = rest.partition("#")[2]
    return replace(task, context={**task.context, "llm": f"{kind}:{url}#{model}"})
