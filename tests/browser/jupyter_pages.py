"""Notebooks in a real browser: a Jupyter server on loopback, and a page with JupyterLab or Notebook 7."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warm_python import TENSORFLOW, warm_kernels

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LAUNCH = {
    "executable_path": CHROMIUM,
    "args": [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no network beyond the machine
    ],
}
VIEWPORT = {"width": 1200, "height": 1000}
LIMIT_S = 60
"""Seconds after which what must happen has failed."""
ADDRESSES = {"lab": "lab/tree/{}?reset", "notebook": "notebooks/{}"}
# no question after news over the pictures, and each notebook opens in the light theme
SETTINGS = {
    "notification": '{"fetchNews": "false", "checkForUpdates": false}',
    "themes": '{"theme": "JupyterLab Light"}',
}

KERNEL = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel"
CHARTS = ".jp-OutputArea-output svg.marks"
# how bright the axis of an explorer's ribbon is: its figures and title are all that is drawn at the foot of the canvas
AXIS = """panel => {
  const canvas = panel.querySelector("canvas");
  const high = Math.round(canvas.height / 4);
  const {data} = canvas.getContext("2d").getImageData(0, canvas.height - high, canvas.width, high);
  let sum = 0, seen = 0;
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 128) {
      sum += (data[i] + data[i + 1] + data[i + 2]) / 3;
      seen += 1;
    }
  return sum / seen;
}"""
# Notebook 7 says these each time that it starts, over any notebook
OF_NOTEBOOK_7 = (
    "Cannot read properties of undefined (reading 'schema')",
    "Command 'filebrowser:open-path' not registered.",
)


@dataclass(frozen=True)
class Jupyter:
    """A server and one page: ``open`` shows a notebook in it, and the notebook before goes, with its kernel.

    ``address`` has no slash at its end. Each notebook is in a folder of its own, in which its kernel works.
    """

    address: str
    folder: Path
    page: Any

    def folder_of(self, name):
        """The folder of a notebook, made at first use; files of other notebooks are elsewhere."""
        folder = self.folder / name.removesuffix(".ipynb")
        folder.mkdir(exist_ok=True)
        return folder

    def open(self, name, *cells, app="lab"):
        """Show a notebook with a new kernel, in ``lab`` or ``notebook``; the page.

        With the code of cells, a new notebook of them is written first, without outputs; else the file of that name
        is shown as it lies in its folder. What the page complains of meanwhile and from then on is in
        ``page.complaints``: errors in the console, exceptions, requests that failed.
        """
        self.close()
        self.page.complaints.clear()  # what the notebook before complained of as its kernel went
        _settle(self.folder)
        if cells:
            self.write(name, _book(cells))
        self.page.goto(f"{self.address}/{ADDRESSES[app].format(self._place(name))}")
        _wait_for_its_kernel(self.page)
        return self.page

    def shows(self, name):
        """Whether a notebook is what the page shows now."""
        return f"/{self._place(name)}" in self.page.url

    def reload(self):
        """Show the same notebook anew, as last saved, with the kernel it has; complaints stay and are added to."""
        address, before = self.page.url, list(self.page.complaints)
        self.page.goto("about:blank")
        self.page.complaints[:] = before  # without the requests that leaving cut short
        self.page.goto(address)
        _wait_for_its_kernel(self.page)
        return self.page

    def write(self, name, book):
        """Write a notebook to its folder."""
        import nbformat

        nbformat.write(book, self.folder_of(name) / name)

    def saved(self, name):
        """The notebook as it lies in its folder."""
        import nbformat

        return nbformat.read(self.folder_of(name) / name, as_version=4)

    def close(self):
        """End the kernel of the notebook that is shown, and leave it."""
        self.page.evaluate("async () => { await window.jupyterapp?.serviceManager.sessions.shutdownAll(); }")
        self.page.goto("about:blank")

    def _place(self, name):
        return (self.folder_of(name) / name).relative_to(self.folder).as_posix()


@contextmanager
def served(folder):
    """The address of a Jupyter server of its own, for /lab and /notebooks; its log is .server.log in ``folder``."""
    folders = {f"JUPYTER_{name}_DIR": str(folder / f".{name}") for name in ("CONFIG", "DATA", "RUNTIME")}
    options = [
        "--no-browser",
        "--allow-root",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=0",
        f"--ServerApp.root_dir={folder}",
        "--IdentityProvider.token=",
        "--LabApp.news_url=",
        "--LabApp.expose_app_in_browser=True",
        "--JupyterNotebookApp.expose_app_in_browser=True",
    ]
    folders["TPUNB_CACHE"] = str(folder / ".cache")  # of Vega, which all kernels send to the page
    with (folder / ".server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options],
            env={**os.environ, **warm_kernels(TENSORFLOW), **folders, "IPYTHONDIR": str(folder / ".ipython")},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _address(server, folder / ".RUNTIME", log.name)
    finally:
        server.terminate()
        server.wait(LIMIT_S)


def _address(server, runtime, log):
    """The address that the server chose, once it answers."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        try:
            (facts,) = runtime.glob("jpserver-*.json")
            address = "http://127.0.0.1:{}".format(json.loads(facts.read_text())["port"])
            urllib.request.urlopen(f"{address}/api", timeout=1).close()
        except (ValueError, OSError):  # there is no file yet, or it is half written, or nobody listens
            assert server.poll() is None, f"the Jupyter server ended by itself: {Path(log).read_text()[-2000:]}"
            time.sleep(0.25)
        else:
            return address
    raise AssertionError(f"no Jupyter server within {LIMIT_S} s: {Path(log).read_text()[-2000:]}")


def _book(cells):
    import nbformat

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = [nbformat.v4.new_code_cell(cell) for cell in cells]
    return nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel})


def _settle(folder):
    settings = folder / ".CONFIG" / "lab" / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True, exist_ok=True)
    for name, text in SETTINGS.items():
        (settings / f"{name}.jupyterlab-settings").write_text(text)


def listened(page):
    """The same page, which from now on keeps what it complains of in ``page.complaints``."""
    page.complaints = []
    page.set_default_timeout(1000 * LIMIT_S)

    def complain(text):
        if not ("/notebooks/" in page.url and text in OF_NOTEBOOK_7):
            page.complaints.append(text)

    page.on("console", lambda said: complain(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complain(str(error)))
    page.on("requestfailed", lambda request: complain(f"request failed: {request.url}"))
    return page


def _wait_for_its_kernel(page):
    page.locator(".jp-CodeCell").first.wait_for()
    page.evaluate("async () => { await window.jupyterapp.restored; }")
    page.wait_for_function(f"() => !!{KERNEL}")


def expect(what, message=None):
    """Return Playwright's assertions on a part of the page, which wait until they hold."""
    from playwright.sync_api import expect

    expect.set_options(timeout=1000 * LIMIT_S)
    return expect(what, message)


def idle(page, timeout_s=120):
    """Wait until the kernel has nothing left to do."""
    page.wait_for_function(f"() => {KERNEL}?.status === 'idle'", timeout=timeout_s * 1000)


def start_all(page):
    """Run all cells, and come back at once."""
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")


def run_all(page, charts=0, timeout_s=240):
    """Run all cells, and wait until the kernel is idle and so many charts are drawn; no cell may fail."""
    done = page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
    assert done, errors(page)
    idle(page, timeout_s)
    page.wait_for_function(
        "([charts, least]) => document.querySelectorAll(charts).length >= least",
        arg=[CHARTS, charts],
        timeout=timeout_s * 1000,
    )


def errors(page):
    """The exceptions of the cells, as the notebook itself holds them: "ValueError: no steps"."""
    return page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.content.widgets"
        ".flatMap(cell => cell.model.toJSON().outputs ?? [])"
        ".filter(output => output.output_type === 'error')"
        ".map(output => `${output.ename}: ${output.evalue}`)"
    )


def python(page, code):
    """What a line of code prints in the kernel of the notebook that is shown, beside its cells; it may not fail."""
    return page.evaluate(
        "async code => {"
        f"  const asked = {KERNEL}.requestExecute({{code, store_history: false}});"
        "  const said = [];"
        "  asked.onIOPub = ({header, content}) => {"
        "    if (header.msg_type === 'stream') said.push(content.text);"
        "    if (header.msg_type === 'error') said.push(content.traceback.join('\\n'));"
        "  };"
        "  const {content} = await asked.done;"
        "  if (content.status !== 'ok') throw new Error(said.join(''));"
        "  return said.join('');"
        "}",
        code,
    ).strip()


def becomes(page, expression, value):
    """What the kernel prints of an expression is a value, soon."""

    def check():
        assert python(page, f"print({expression})") == value

    eventually(check)


def eventually(check):
    """What a check returns once it asserts nothing wrong.

    The page shows a change at once, but holds its message back until the kernel has answered the one before: for a
    moment nothing says that one is still to come.
    """
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def save(page):
    """Save the notebook, with its outputs and the state of its widgets."""
    page.evaluate("async () => { await window.jupyterapp.commands.execute('docmanager:save'); }")


def theme(page, name):
    """Change the theme to ``Light`` or ``Dark``."""
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", f"JupyterLab {name}")
    light = "true" if name == "Light" else "false"
    page.wait_for_function("light => document.body.dataset.jpThemeLight === light", arg=light)
    # it lies over the page while the theme loads, and JupyterLab stumbles over a second one before the first is gone
    page.wait_for_function("() => document.querySelector('#jupyterlab-splash') === null")


def ink(page):
    """The colours of the text in the charts, as the browser paints them."""
    return set(
        page.evaluate(
            "charts => [...document.querySelectorAll(charts + ' text')]"
            ".filter(text => text.getAttribute('fill') === 'currentColor')"
            ".map(text => getComputedStyle(text).fill)",
            CHARTS,
        )
    )


def brightness(colour):
    """How bright a colour of the browser is, from 0 to 255."""
    return sum(int(part) for part in re.findall(r"\d+", colour)[:3]) / 3  # rgb(...) or rgba(...)


def shot(page, folder, name):
    """Save a picture of each chart of the notebook."""
    pictures = page.locator(".jp-OutputArea-output").filter(has=page.locator("svg.marks:visible"))
    for number in range(pictures.count()):
        pictures.nth(number).scroll_into_view_if_needed()
        pictures.nth(number).screenshot(path=folder / f"{name}-{number:02d}.png")
