"""The facts of a run: its questions, models, date, state, and how its systems differ."""

from datetime import datetime

from ...presenters.words import counted
from ..run_folder import OWN, POOLED, EvaluationRun
from .summary import Summary
from .words import plain

MODELS = ("llm", "encoder", "judge", "reranker", "graph_encoder", "first_stage")
"""The settings that name models."""

_CORPORA = {POOLED: "all paragraphs of each dataset's questions", OWN: "each question's own paragraphs"}


def header(summary: Summary) -> list[tuple[str, str]]:
    """The facts of a run as name and value, without its command."""
    run, about = summary.run, summary.run.about
    datasets = [
        f"{section.dataset} ({len(section.questions):,}{f' of {section.of:,}' if section.of is not None else ''})"
        for section in summary.sections
    ]
    return [
        ("questions", "; ".join(datasets)),
        ("seed", plain(about.get("seed", "-"))),
        ("corpus", _corpus(run)),
        ("models", "; ".join(f"{name} {', '.join(values)}" for name, values in models(run).items())),
        ("begun", _begun(run)),
        ("dubito", plain(about.get("dubito", "-"))),
        ("answers are normalised as in", {"squad": "SQuAD", "longbench": "LongBench"}[summary.standard]),
        ("state", state(summary)),
    ]


def state(summary: Summary) -> str:
    """'12 answered, 1 failed, 3 not asked yet'."""
    parts = [f"{summary.answered:,} answered", f"{summary.failed:,} failed"]
    return ", ".join([*parts, f"{summary.left:,} not asked yet"] if summary.left else parts)


def models(run: EvaluationRun) -> dict[str, list[str]]:
    """The models of all systems, by the setting that names them."""
    by_setting = {
        name: list(dict.fromkeys(plain(system.context[name]) for system in run.systems if name in system.context))
        for name in MODELS
    }
    return {name: values for name, values in by_setting.items() if values}


def differing(run: EvaluationRun) -> dict[str, dict[str, str]]:
    """By system, the settings whose value is not the same in all systems that have them."""
    values: dict[str, set[str]] = {}
    for system in run.systems:
        for name, value in system.context.items():
            values.setdefault(name, set()).add(plain(value))
    return {
        system.label: {name: plain(value) for name, value in system.context.items() if len(values[name]) > 1}
        for system in run.systems
    }


def command(run: EvaluationRun) -> str:
    """The command that repeats the run; empty if the run does not have it."""
    return plain(run.about.get("command") or "")


def notes(summary: Summary) -> list[str]:
    """What a reader of the tables must know, and a sentence for each dataset with broken records."""
    sentences = [
        "Means are over answered questions, with 95% bootstrap intervals. Failed questions are counted separately."
    ]
    if summary.failed or summary.left:
        sentences.append(
            "Rows may be over different questions: compare systems by the tests, which use the questions both answered."
        )
    return sentences + [
        f"{section.dataset}: {counted(len(section.left_out), 'record')} left out; the first: {section.left_out[0]}"
        for section in summary.sections
        if section.left_out
    ]


def _corpus(run: EvaluationRun) -> str:
    corpus = run.about.get("corpus")
    if corpus in _CORPORA:
        return _CORPORA[str(corpus)]
    corpora = dict.fromkeys(plain(system.context["corpus"]) for system in run.systems if "corpus" in system.context)
    return ", ".join(corpora) or "-"


def _begun(run: EvaluationRun) -> str:
    try:
        return datetime.fromisoformat(plain(run.about["begun"])).strftime("%Y-%m-%d %H:%M %Z")
    except (KeyError, ValueError):
        return "-"
