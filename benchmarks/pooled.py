"""Do the systems of a run differ, over the questions of all its datasets at once?

    python benchmarks/pooled.py RUN --against SYSTEM [--metric f1]

RUN is a folder of `dubito eval`, or one that `dubito report --keep` wrote. A line for each other system: its mean minus
that of SYSTEM over the questions that both have, with the bootstrap interval (95 %), the p of a paired permutation
test, and the same after Holm's correction over the lines.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from dubito.evals import run_folder
from dubito.evals.scores import scores_of
from dubito.evals.statistics import bootstrap_interval, holm, paired_permutation
from dubito.evals.store import Store


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--against", required=True, help="the label of a system")
    parser.add_argument("--metric", default="f1")
    given = parser.parse_args()
    run = run_folder.read(given.run)
    with Store(run.results) as store:
        scores = scores_of(run, store)
    values = {
        system.label: {
            question.id: scored.metrics[given.metric]
            for question in run.questions
            if (scored := scores.get((system.label, question.id))) and given.metric in scored.metrics
        }
        for system in run.systems
    }
    base = values.pop(given.against)
    lines = []
    for label, found in values.items():
        both = [question for question in base if question in found]
        if both:
            first, second = ([side[question] for question in both] for side in (found, base))
            differences = [one - other for one, other in zip(first, second, strict=True)]
            p = paired_permutation(first, second, run.seed).p
            lines.append((label, len(both), bootstrap_interval(differences, run.seed), p))
    print(f"| {given.metric} minus that of {given.against} | questions | difference | p | p, Holm |")
    print("|---|---|---|---|---|")
    for (label, n, found_interval, p), corrected in zip(lines, holm([line[-1] for line in lines]), strict=True):
        mean, low, high = found_interval
        print(f"| {label} | {n} | {mean:+.3f} ({low:+.3f} to {high:+.3f}) | {p:.4f} | {corrected:.4f} |")


if __name__ == "__main__":
    main()
