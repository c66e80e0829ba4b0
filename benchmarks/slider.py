"""Measure the time of a slider move on the paper's longest run in JupyterLab, compared with Altair's JupyterChart.

``python benchmarks/slider.py [--quick] [--moves N]``: a notebook in headless Chromium, all on this machine. One cell
builds 112,590 steps × 300 operations (`simulate.synthetic_runs`, hard), one shows ``tp.explore(steps)``, and one
per method what a user of JupyterChart writes instead: a slider of ipywidgets whose callback clusters the steps and
assigns a new chart, `tpunb.charts.timeline`. For DBSCAN, k-means and OLS, arrow keys move the focused slider to and
fro where the sweep changes most; each key waits until page and kernel are idle, including the requests of the page at
rest.

A move takes from the time stamp of the key to the animation frame after the timeline's canvas was painted with the
clustering in the panel's line of code, which the page sets together with the headline. JupyterChart has no such line:
there it is the frame after its SVG was redrawn, and moves without a change do not count. Coverage and the list of
phases follow the timeline by a frame; their time is printed too. Then half the number of keys follow 300 ms after
each new clustering, even if page and kernel are busy; their median is printed.

Then the mouse drags each slider over its whole length in 60 moves, to and fro. An animation frame is blank if the
timeline is invisible, has no height, or less than half of its paint at rest (an SVG: no bar), or if the coverage is
missing or has no height.

``--quick`` takes 60 operations, 5 keys per slider and drags of 20 moves, and JupyterChart with DBSCAN only. The last
line is one JSON object:

``median_ms``, ``jupyterchart_ms``
    The worst of the methods' medians.
``blank_frames``
    Blank frames of tpunb's panel, in all drags.
``kb_per_move``
    Traffic of the page's websockets in both directions until idle: the maximum over moves, in 1000 bytes.
``first_paint_s``
    From the start of the cell ``tp.explore(steps)`` until its timeline is visible, before the steps are grouped.
``grouped_s``
    From the start of that cell until the timeline has the colours of the phases, and Vega has drawn it.
``notebook_kb``
    Size of the notebook that is saved then, in 1000 bytes.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

METHODS = {"dbscan": "DBSCAN", "kmeans": "k-means", "ols": "OLS"}
THUMB = 16  # pixels
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LAUNCH = {
    "executable_path": CHROMIUM,
    "args": ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
}
KERNEL = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
PAGE = Path(__file__).with_suffix(".js")


@dataclass(frozen=True)
class Panel:
    """CSS selectors of a slider and its timeline: a panel, and in it the thumb, its rail and the rest."""

    root: str
    slider: str
    rail: str
    ribbon: str  # a canvas, or an SVG
    line: str | None = None  # line of code of the clustering shown
    coverage: str | None = None
    table: str | None = None  # list of the phases


OURS = Panel(
    ".tpunb-explorer",
    "input[type=range]",
    "input[type=range]",
    "canvas",
    ".tpunb-code",
    ".tpunb-phases .tpunb-bar",
    '[aria-label^="Phases by"]',
)


class Moves(NamedTuple):
    """Moves of one slider: milliseconds after the key, kB, and whether the picture changed."""

    each: list[dict[str, float]]
    kernel_ms: list[float]  # of the callback
    soon_ms: list[float]  # of keys that did not wait
    drag: dict[str, int]  # frames, blank frames, clusterings shown

    def median(self, name: str) -> float:
        """Return the median of one quantity."""
        return statistics.median(move[name] for move in self.each)

    def said(self) -> str:
        """Return a description of the moves."""
        low, _, high = spread([move["frame"] for move in self.each])
        at = {name: self.median(name) for name in ("sent", "heard", "painted", "frame")}
        kernel = f", the callback {statistics.median(self.kernel_ms):.0f} of it" if self.kernel_ms else ""
        soon = f"without rest between the keys {statistics.median(self.soon_ms):.0f} ms; " if self.soon_ms else ""
        listed = f", the phases listed after {self.median('listed'):.0f}" if "listed" in self.each[0] else ""
        return (
            f"{at['frame']:.0f} ms [{low:.0f}, {high:.0f}]: sent after {at['sent']:.0f}, "
            f"answered after {at['heard']:.0f}{kernel}, painted after {at['painted']:.0f}{listed}; "
            f"{self.median('kb'):.1f} kB; "
            f"{sum(move['changed'] for move in self.each):.0f} of {len(self.each)} changed the picture; "
            f"{soon}a drag showed {self.drag['cuts']} cuts, {self.drag['blank']} of {self.drag['frames']} frames blank"
        )


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 10th percentile, the median and the 90th.

    >>> spread([1, 2, 3, 4, 5, 6, 7, 8, 9])
    (1.0, 5.0, 9.0)
    """
    tenths = statistics.quantiles(values, n=10) if len(values) > 1 else [float(values[0])] * 9
    return tenths[0], tenths[4], tenths[8]


def keys(width: int) -> Iterator[str]:
    """Yield arrow keys to and fro over a range, from its left end, without end."""
    while True:
        yield from ["ArrowRight"] * width + ["ArrowLeft"] * width


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Yield the address of a separate Jupyter server for `folder`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {f"JUPYTER_{name}_DIR": str(folder / f".{name}") for name in ("CONFIG", "DATA", "RUNTIME")}
    settings = folder / ".CONFIG/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    options = ["--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    options += [f"--ServerApp.root_dir={folder}", "--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True"]
    with (folder / ".log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            env={**os.environ, **own, "IPYTHONDIR": str(folder / ".ipython"), "TPUNB_CACHE": str(folder / ".cache")},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + 60
        while not _answers(f"http://127.0.0.1:{port}/api"):
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"no Jupyter server: {(folder / '.log').read_text()[-2000:]}")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=1).close()
    except (urllib.error.URLError, OSError):
        return False
    return True


def notebook(page: Any, address: str, folder: Path, cells: Sequence[str]) -> None:
    """Write a notebook of these cells, and open it with a kernel."""
    import nbformat

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel}
    )
    nbformat.write(book, folder / "slider.ipynb")
    page.goto(f"{address}/lab/tree/slider.ipynb?reset")
    page.locator(".jp-CodeCell").first.wait_for(timeout=60_000)
    page.evaluate("async () => { await jupyterapp.restored; }")
    page.wait_for_function(f"() => {KERNEL.replace('.', '?.')}?.status === 'idle'", timeout=60_000)


def run_cell(page: Any, number: int) -> None:
    """Run a cell and wait for its end."""
    page.evaluate("number => { jupyterapp.shell.currentWidget.content.activeCellIndex = number; }", number)
    if not page.evaluate("() => jupyterapp.commands.execute('notebook:run-cell')"):
        raise RuntimeError("\n".join(page.locator(".jp-OutputArea-output").all_text_contents())[-2000:])


def asked(page: Any, expression: str) -> Any:
    """Return the value of an expression in the kernel."""
    told = page.evaluate(
        f"async (says) => (await {KERNEL}.requestExecute({{code: '', user_expressions: {{says}}}}).done).content",
        f"json.dumps({expression})",
    )
    says = told["user_expressions"]["says"]
    if says["status"] != "ok":
        raise RuntimeError(f"{expression}: {says['ename']}: {says['evalue']}")
    return json.loads(ast.literal_eval(says["data"]["text/plain"]))


def quiet(page: Any, panel: Panel, limit_s: float = 120) -> int:
    """Wait until page and kernel are idle; return the traffic since the last move."""
    rest_ms = 120 if panel.line else 250  # tpunb's panel sets `aria-busy`
    return int(page.evaluate("given => bench.quiet(...given)", [asdict(panel), rest_ms, limit_s]))


def move(page: Any, panel: Panel, key: str, limit_s: float = 20) -> dict[str, float] | None:
    """Press a key on the focused slider, wait until page and kernel are idle, and return the move, see `Moves`.

    None where a panel without a line of code drew nothing: a JupyterChart that is assigned an equal chart.

    Raises
    ------
    Error
        Of Playwright, when a panel with such a line shows no new cut upon it.
    """
    press(page, panel, key, limit_s)
    found = page.evaluate("() => bench.move") if panel.line else None
    kb = quiet(page, panel) / 1e3
    found = found or page.evaluate("() => Promise.race([bench.move, null])")
    listed = {"listed": page.evaluate("() => bench.listed")} if panel.table else {}
    return found and {**found, **listed, "kb": kb}


def press(page: Any, panel: Panel, key: str, limit_s: float = 20) -> None:
    """Press a key on the focused slider; the page's `bench.move` is the promise of the move."""
    page.evaluate("given => bench.expect(...given)", [asdict(panel), limit_s])
    page.keyboard.press(key)


def soon(page: Any, panel: Panel, pressed: Iterable[str]) -> list[float]:
    """Return the milliseconds of keys pressed 300 ms after each new clustering, without waiting.

    Of a panel with a line of code alone: it tells which cut is shown.
    """
    found = []
    for key in pressed if panel.line else ():
        press(page, panel, key)
        found.append(page.evaluate("() => bench.move")["frame"])
        page.wait_for_timeout(300)
    quiet(page, panel)
    return found


def drag(page: Any, panel: Panel, moves: int) -> dict[str, int]:
    """Drag the slider's thumb over its rail and back; count frames, blank frames and clusterings shown."""
    page.locator(f"{panel.root} {panel.slider}").scroll_into_view_if_needed()
    slider, rail = (page.locator(f"{panel.root} {part}").bounding_box() for part in (panel.slider, panel.rail))
    y = rail["y"] + rail["height"] / 2
    page.evaluate("panel => bench.look(panel)", asdict(panel))
    page.mouse.move(slider["x"] + min(slider["width"] / 2, THUMB / 2), y)
    page.mouse.down()
    for at in range(moves):
        part = 1 - abs(1 - 2 * (at + 1) / moves)
        page.mouse.move(rail["x"] + THUMB / 2 + part * (rail["width"] - THUMB), y)
        page.wait_for_timeout(16)
    page.mouse.up()
    quiet(page, panel)
    found: dict[str, int] = page.evaluate("() => bench.looked()")
    return found


def measured(page: Any, panel: Panel, width: int, moves: int, dragged: int) -> Moves:
    """Return the moves of a slider that stands at the left end of its stretch of so many stops.

    Raises
    ------
    RuntimeError
        When the ribbon always looked the same: whatever was timed, it was no new cut.
    """
    thumb = page.locator(f"{panel.root} {panel.slider}")
    thumb.scroll_into_view_if_needed()
    thumb.focus()
    for key in islice(keys(1), 2):  # warm-up
        move(page, panel, key)
    asked(page, "cells.taken()")
    pressed = keys(width)
    each = [one for key in islice(pressed, moves) if (one := move(page, panel, key))]
    kernel_ms = asked(page, "cells.taken()")
    found = Moves(each, kernel_ms, soon(page, panel, islice(pressed, moves // 2)), drag(page, panel, dragged))
    if not any(one["changed"] for one in each) or not found.drag["cuts"]:
        raise RuntimeError(f"no move changed what {panel.root} shows")
    return found


def choose(page: Any, method: str, moves: int) -> tuple[list[float], int, int]:
    """Select a method and move its slider to the start of the keys; return its stops and their range."""
    page.locator(f"{OURS.root} select").select_option(method)
    quiet(page, OURS)
    every, first, last = asked(page, f"cells.stops(view, {moves})")
    page.locator(f"{OURS.root} {OURS.slider}").evaluate(
        "(slider, at) => { slider.value = at; slider.dispatchEvent(new Event('input')); }", every[first]
    )
    quiet(page, OURS)
    return every, first, last


def compared(page: Any, moves: int, dragged: int, both: Sequence[str]) -> Iterator[tuple[str, Moves, Moves | None]]:
    """Yield the name of each method, tpunb's moves, and those of JupyterChart, whose cells start with the fourth."""
    for method, title in METHODS.items():
        every, first, last = choose(page, method, moves)
        ours, theirs = measured(page, OURS, last - first, moves, dragged), None
        if method in both:
            panel = Panel(f".beside-{method}", ".noUi-handle", ".noUi-base", "svg.marks")
            run_cell(page, 3 + both.index(method))
            page.wait_for_selector(f"{panel.root} {panel.ribbon}", timeout=60_000)
            theirs = measured(page, panel, last - first, moves, dragged)
        yield f"{title}, from {every[first]:g} to {every[last]:g}", ours, theirs


def main() -> None:
    """Print the comparison, and one line of JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="a coarse answer in under 50 seconds")
    options.add_argument("--moves", type=int, help="of each slider by key; 40, or 5 if quick")
    given = options.parse_args()
    ops, moves, dragged = (60, given.moves or 5, 20) if given.quick else (300, given.moves or 40, 60)
    both = ["dbscan"] if given.quick else [*METHODS]
    if CHROMIUM is None:
        raise SystemExit("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    cells = [
        f"import json, sys\nsys.path.insert(0, {str(PAGE.parent)!r})\nimport slider_cells as cells",
        f"steps = cells.training({ops})",
        "view = cells.explorer(steps); view",
        *[f"cells.beside(view, {moves})"] * len(both),
    ]
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as name, served(Path(name)) as address, sync_playwright() as play:
        browser = play.chromium.launch(**LAUNCH)
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        page.add_init_script(path=PAGE)
        notebook(page, address, Path(name), cells)
        for number in range(2):
            run_cell(page, number)
        page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 2; }")
        begun = time.perf_counter()
        page.evaluate("() => { jupyterapp.commands.execute('notebook:run-cell'); }")
        page.wait_for_selector(f"{OURS.root} :is({OURS.ribbon}, svg[role=img])", timeout=60_000)
        first_paint_s = time.perf_counter() - begun
        page.wait_for_selector(f"{OURS.root} {OURS.ribbon}", timeout=120_000)
        grouped_s = time.perf_counter() - begun
        quiet(page, OURS)
        page.evaluate("async () => { await jupyterapp.commands.execute('docmanager:save'); }")
        notebook_kb = (Path(name) / "slider.ipynb").stat().st_size / 1e3
        for title, tpunb, jupyterchart in compared(page, moves, dragged, both):
            ours.append(tpunb)
            print(f"{title}: {tpunb.said()}", flush=True)
            if jupyterchart is not None:
                theirs.append(jupyterchart)
                print(f"  JupyterChart: {jupyterchart.said()}", flush=True)
        browser.close()
    if given.quick:
        print(f"quick: {ops} operations, {moves} keys, drags of {dragged}; left out: JupyterChart with k-means and OLS")
    last = {
        "median_ms": max(found.median("frame") for found in ours),
        "jupyterchart_ms": max(found.median("frame") for found in theirs),
        "blank_frames": sum(found.drag["blank"] for found in ours),
        "kb_per_move": max(move["kb"] for found in ours for move in found.each),
        "first_paint_s": first_paint_s,
        "grouped_s": grouped_s,
        "notebook_kb": notebook_kb,
    }
    print(json.dumps({name: round(figure, 1) for name, figure in last.items()}))


if __name__ == "__main__":
    main()
