"""Write the reports of a run: the page, and Markdown with its plots in files beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from ...errors import UserFault, extra_command
from ...presenters.blocks import Pairs, Words
from ...render.markdown import code, escaped, markdown
from ...traces.files import write_file, writing
from ..answers import Standard
from ..run_folder import EvaluationRun
from ..store import Store
from . import page
from .about import command, header, notes
from .drawing import Plot, can_draw, drawn, save
from .inputs import inputs_of
from .plots import plots_of
from .summary import Reference, Summary, summary_of
from .tables import section_blocks, systems_blocks

HTML, MARKDOWN = "report.html", "report.md"

MARKDOWN_BEGINNING = "<!-- dubito report -->"


@dataclass(frozen=True)
class Written:
    """The reports that were written. plots: their number; remark: what is missing in the reports, and why."""

    summary: Summary
    html: Path
    html_bytes: int
    md: Path
    plots: int
    remark: str


def write_reports(
    run: EvaluationRun,
    store: Store,
    *,
    html: Path | None = None,
    md: Path | None = None,
    metric: str = "f1",
    standard: Standard | None = None,
    reference: Reference | None = None,
    against: str | None = None,
) -> Written:
    """Write the page, the Markdown, and a folder of plots beside the Markdown. It blocks.

    html, md: their paths, by default in the run's folder; metric: the metric in which systems are compared;
    standard: by default the run's; reference, against: see `summary_of`.
    Raises `UserFault` for a run without outcomes, for paths that cannot be written or hold another file, and if scipy
    or ir-measures is missing.
    """
    html, md = html or run.folder / HTML, md or run.folder / MARKDOWN
    for path, beginning in ((html, page.BEGINNING), (md, MARKDOWN_BEGINNING)):
        with writing(path, "report", beginning.encode()):
            path.parent.stat()  # a name that cannot be used is refused before anything is computed
    summary = summary_of(run, store, metric, standard or run.standard, reference, against=against)
    if not summary.scores:
        raise UserFault(f"No question of '{run.folder}' has an outcome yet: resume the run.")
    inputs = inputs_of(run, store)
    plots = plots_of(summary, inputs)
    figures = [drawn(plot) for plot in plots] if can_draw() else []
    missing = (
        f"The report has no plots: they need a package: {extra_command('plots')}." if plots and not figures else ""
    )
    remark = " ".join(filter(None, [inputs.remark, missing]))
    size = write_file(html, page.page_of(summary, figures, inputs, remark), "report")
    save(figures, plots_folder(md))
    text = markdown_of(summary, [figure.plot for figure in figures], plots_folder(md).name, remark)
    write_file(md, text.encode(), "report")
    return Written(summary, html, size, md, len(figures), remark)


def plots_folder(md: Path) -> Path:
    """The folder of the plots of a report in Markdown: plots/ beside report.md, and name-plots/ beside name.md."""
    return md.with_name("plots" if md.name == MARKDOWN else f"{md.stem}-plots")


def markdown_of(summary: Summary, plots: Sequence[Plot], folder: str, remark: str = "") -> str:
    """The report. plots: files in the folder beside it; remark: what is missing, and why."""
    systems, *_settings = systems_blocks(summary)
    parts = [f"{MARKDOWN_BEGINNING}\n# Evaluation", markdown([Pairs(header(summary))])]
    if repeat := command(summary.run):
        parts += ["The command that makes it again:", code(repeat)]
    sentences = [*notes(summary), *([remark] if remark else [])]
    parts += [markdown([Words(sentence) for sentence in sentences]), "## Systems", markdown([systems])]
    for section in summary.shown:
        parts += [f"## {escaped(section.dataset)}", markdown(section_blocks(section, summary))]
        own = [plot for plot in plots if plot.dataset == section.dataset]
        parts += [f"### {plot.title}\n\n![{plot.note}]({quote(folder)}/{plot.name}.png)\n\n{plot.note}" for plot in own]
    return "\n\n".join(parts) + "\n"
