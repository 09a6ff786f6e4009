"""How large is the page of a trace, how long does it take to make, and to open?

    python benchmarks/trace_page.py run.jsonl [another.jsonl ...] [--repeats 5]

Each trace is read and made into a page in this process (the first of the repeats is not counted), then opened by
headless Chromium with an empty profile; the time to open is that from the start of the navigation until the page has
loaded and is laid out, the median of the repeats.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from dubito.render.trace_page import render
from dubito.traces.recording import read

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')

SPY = (
    "<script>addEventListener('load', () => {"
    " document.body.offsetHeight; document.body.dataset.opened = performance.now(); })</script></head>"
)
"""Lays the page out and notes when that was done; the page's own policy lets no script run and is taken out."""

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


def main() -> None:
    """Print one row a trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print("| graph | runs of nodes | trace, kB | page, kB | page a 100 runs, kB | made in, ms | opened in, ms |")
    print("|---|---|---|---|---|---|---|")
    for trace in given.traces:
        print(row(trace, given.repeats), flush=True)


def row(trace: Path, repeats: int) -> str:
    """What one trace gives."""
    recording = read(trace)
    tasks = sum(len(step.runs) for _, step in recording.walk())
    made = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        page = render(read(trace))
        made.append(time.perf_counter() - start)
    opened = statistics.median(opened_in(page.decode()) for _ in range(repeats))
    kilobytes = len(page) / 1000
    return (
        f"| {recording.graph} | {tasks} | {trace.stat().st_size / 1000:,.0f} | {kilobytes:,.0f} | "
        f"{100 * kilobytes / tasks:,.0f} | {1000 * statistics.median(made[1:]):,.0f} | {opened:,.0f} |"
    )


def opened_in(page: str) -> float:
    """Milliseconds until a new browser has laid the page out."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("There is no executable named chromium on the PATH: install it.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        path.write_text(POLICY.sub("", page).replace("</head>", SPY, 1), encoding="utf-8")
        command = [chromium, *FLAGS, f"--user-data-dir={folder}/profile", "--dump-dom", path.as_uri()]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'data-opened="([\d.]+)"', dom)
    if found is None:
        raise SystemExit("Chromium did not open the page.")
    return float(found[1])


if __name__ == "__main__":
    main()
