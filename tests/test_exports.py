"""The explorer without a kernel: files, frozen outputs, and what a converted notebook shows."""

import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from xml.etree import ElementTree

import polars as pl
import pytest
from warm_python import warm_kernels

from tpunb import schema
from tpunb.frames import Steps
from tpunb.testing import toy_steps
from tpunb.widgets import exports
from tpunb.widgets.explorer import explore

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>{title}\x1b\u202e"
WIDGET = "application/vnd.jupyter.widget-view+json"


class Page(HTMLParser):
    """The elements of a page as a browser takes them: text in a script is no markup."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.scripts, self.text = [], [], [], ""
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text += data


def evil_run(pattern="aaabbb"):
    """A run whose name, host, marks and operations are markup."""
    toy = toy_steps(pattern, host=EVIL)
    ops = toy.ops.with_columns(pl.format("{}{}", pl.lit(EVIL), "op").cast(schema.NAME).alias("op"))
    return Steps(toy.frame.with_columns(kind=pl.lit(EVIL)), ops, toy.devices, toy.windows, name=EVIL)


@pytest.fixture(scope="module")
def view():
    return explore(toy_steps("aaabbbc"), checkpoints=[2])


@pytest.fixture(scope="module")
def written(view):
    return exports.page(view.state).decode()


def state_of(page):
    (line,) = re.findall(r"^const state = (.*);$", page, re.MULTILINE)
    return json.loads(line)


def test_files_are_written_where_they_are_asked_for(view, tmp_path):
    assert view.save(tmp_path / "a.html") == tmp_path / "a.html"
    assert (tmp_path / "a.html").read_bytes().startswith(b"<!doctype html>")
    ElementTree.fromstring(view.save_svg(str(tmp_path / "a.svg")).read_bytes())
    assert view.save_png(tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert view.save_svg(tmp_path / "new" / "a.svg").is_file()
    with pytest.raises(OSError, match=r"a\.png"):
        view.save_svg(tmp_path / "a.png" / "a.svg")


@pytest.mark.parametrize(
    ("kind", "suffix", "media"),
    [
        ("html", "html", "text/html"),
        ("svg", "svg", "image/svg+xml"),
        ("png", "png", "image/png"),
        ("trace", "trace.json", "application/json"),
    ],
)
def test_the_page_is_handed_files(view, kind, suffix, media):
    sent = []
    view.send = lambda content, buffers=None: sent.append((content, buffers))
    view._asked(None, {"ask": "export", "id": 1, "with": {"kind": kind}}, [])
    ((content, (data,)),) = sent
    assert content == {"name": f"toy.{suffix}", "type": media, "answer": 1}
    assert len(data) > 100


def test_the_trace_is_that_of_the_phases(view, tmp_path):
    _, (data,) = exports.export(view.state, "trace")
    assert data == view.value.to_chrome_trace(tmp_path / "t.json", view.state.checkpoints).read_bytes()
    assert b"nearest checkpoint" in data


def test_a_file_of_no_kind(view):
    with pytest.raises(ValueError, match="An export must be html, svg, png or trace"):
        exports.export(view.state, "exe")


@pytest.mark.parametrize(("name", "file"), [("../a b", "a-b"), ("", "run"), ("///", "run"), ("é", "é")])
def test_the_name_of_a_file_is_no_path(name, file):
    toy = toy_steps("ab")
    steps = Steps(toy.frame, toy.ops, toy.devices, toy.windows, name=name)
    drawn, _ = exports.export(explore(steps).state, "svg")
    assert drawn["name"].removesuffix(".svg").strip("-").replace("--", "-") == file


def test_the_page_asks_nothing_of_any_network(written):
    seen = Page(written)
    (policy,) = [value for name, value in seen.attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none'; ")
    assert "connect-src" not in policy
    assert "http" not in policy
    assert [value for name, value in seen.attributes if name in ("src", "href")] == []
    assert not {"link", "iframe", "object", "base"} & {*seen.tags}
    ours = written.replace(seen.scripts[0], "")  # Vega's own names of formats aside
    assert {*re.findall(r"https?://[^\s\"'\\)]+", ours)} <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
        *re.findall(r"https://vega.github.io/schema/vega-lite/v[\d.]+json", ours),
    }


def test_the_page_holds_what_the_panel_shows(view, written):
    state = state_of(written)
    assert state["clustering"] == view.clustering
    assert state["_clusters"]["code"] == view.code
    assert state["_details"]["longest"] == view.value.longest.id
    assert {int(number) for number in state["_details"]["phases"]} == {*view.value.frame["phase"]}
    assert state["_details"]["phases"]["1"] == json.loads(json.dumps(view.details(1)))
    assert "_compared" not in state


def test_without_scripts_the_page_is_pictures_and_tables(view, written):
    (still,) = re.findall(r"<noscript>(.*?)</noscript>", written, re.DOTALL)
    same = [
        re.sub(r"t[0-9a-f]{10}-", "", one) for one in (still, exports.static_html(view.state))
    ]  # each picture's own ids
    assert same[0] == same[1]
    assert {"svg", "table", "caption"} <= {*Page(still).tags}
    assert "script" not in Page(still).tags


def test_a_selected_phase_beyond_the_table_has_its_details():
    view = explore(toy_steps("abcdefghijklmnop"), method=lambda steps: range(len(steps)))
    view.phase = 0  # the shortest
    assert "0" in state_of(exports.page(view.state).decode())["_details"]["phases"]


def test_the_second_run_is_in_the_page():
    state = state_of(exports.page(explore(toy_steps("aaabbb"), other=toy_steps("aabbb")).state).decode())
    assert len(state["_compared"]["matches"]) == 2
    state = state_of(exports.page(explore(toy_steps("aaabbb"), other=toy_steps("ppppq")).state).decode())
    assert "allow_different_models" in state["_compared"]["error"]


def test_names_are_text_in_page_picture_and_state():
    view = explore(evil_run(), checkpoints={EVIL: 1}, other=evil_run("aabb"))
    page = exports.page(view.state).decode()
    seen = Page(page)
    assert seen.tags.count("script") == 2
    assert "img" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert seen.scripts[1].rstrip().endswith('document.getElementById("explorer") });')
    shown = EVIL.replace("\x1b", "\ufffd").replace("\u202e", "\ufffd")
    assert state_of(page)["_frame"]["name"] == shown
    assert shown in json.dumps(state_of(page)["_details"], ensure_ascii=False)
    for text in (page, exports.static_html(view.state), json.dumps(view.get_state(), default=str, ensure_ascii=False)):
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)
    static = Page(exports.static_html(view.state))
    assert not {"img", "script"} & {*static.tags}
    assert shown in static.text


def test_what_a_front_end_shows_without_a_kernel(view):
    still = exports.static_bundle(view.state)
    assert {*still} == {"text/html", "image/png", "text/plain"}
    assert still["text/plain"] == repr(view.value)
    assert b64decode(still["image/png"]).startswith(b"\x89PNG")
    data, _ = view._repr_mimebundle_()
    assert {*data} == {"text/html", "text/plain", WIDGET}


def test_pictures_have_the_order_of_the_panel_with_comparison_and_distinguishing_operations():
    view = explore(toy_steps("aaabbb"), other=toy_steps("aabbbcc"))
    html = view._repr_mimebundle_()[0]["text/html"]
    order = (
        "Timeline",
        "What to do",
        "Phases by share of step time without waits",
        "Top operations",
        "Distinguishing operations",
    )
    places = [*map(html.index, (*order, "toy compared with toy (2)", "How phases were found"))]
    assert places == sorted(places)
    assert "(only in toy (2))" in html
    assert "<details open>" in html
    assert (
        "no comparison: " in explore(toy_steps("aaabbb"), other=toy_steps("ppppq"))._repr_mimebundle_()[0]["text/html"]
    )


CELLS = (
    "import tpunb as tp\nfrom tpunb.testing import toy_steps\n%load_ext tpunb\n"
    "from IPython.display import display\nview = tp.explore(toy_steps('aaabbb'))",
    "view",
    "display(view)",
    "view.threshold = 0.0\nview.to_static()",
    "import sys\nsys.path.insert(0, {tests!r})\nfrom stand_in import StandIn\nfrom tpunb.profiler import capture\n"
    "capture.Local = StandIn",
    "%%tpupoint --window 0.05\nfrom capture_loops import traced, train_until\n"
    "train_until(tpu, lambda: traced(tpu) >= 5)  # of one step there is no curve",
    "print(type(tpu.explorer).__name__, tpu.explorer is tpu.explorer, tpu.explorer.value is tpu.phases)\n"
    "tpu.to_static()",
)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A notebook that showed the explorer twice and a run once, and froze them; as it is saved, and the messages."""
    from kernel_client import Client
    from nbformat import v4

    tests = str(__file__).rsplit("/", 1)[0]
    cells = [v4.new_code_cell(cell.replace("{tests!r}", repr(tests))) for cell in CELLS]
    client = Client(
        v4.new_notebook(cells=cells),
        timeout=300,
        store_widget_state=False,
        resources={"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", warm_kernels()["JUPYTER_PATH"])
        client.execute()
    return client.nb, client.messages


def as_html(notebook):
    from nbconvert import HTMLExporter

    return HTMLExporter(template_name="basic").from_notebook_node(notebook)[0]


def displays(messages):
    """What was sent to each display, one after another: sets of media types."""
    sent = {}
    for kind, content in messages:
        if kind in ("display_data", "update_display_data") and "display_id" in content.get("transient", {}):
            sent.setdefault(content["transient"]["display_id"], []).append((kind, {*content["data"]}))
    return sent


@pytest.mark.live
def test_freeze_puts_pictures_in_place_of_the_panel(executed):
    _, messages = executed
    sent = [*displays(messages).values()]
    panels = [one for one in sent if WIDGET in one[0][1]]
    assert len(panels) == 3
    for shown, *updates in panels:
        assert shown[1] == {WIDGET, "text/plain"}
        assert updates == [("update_display_data", {"text/plain"})]
    pictures = [one for one in sent if one not in panels]
    assert len(pictures) == 3
    for *shown, last in pictures:
        assert shown[-1][1] == {"text/html", "text/plain"}
        assert last == ("update_display_data", {"text/html", "image/png", "text/plain"})


@pytest.mark.live
def test_the_run_is_in_the_variable(executed):
    notebook, _ = executed
    (told,) = [output["text"] for output in notebook.cells[-1].outputs if output.output_type == "stream"]
    assert told == "PhaseExplorer True True\n"


@pytest.mark.live
def test_a_notebook_saved_without_widgets_shows_pictures_and_tables(executed):
    notebook, _ = executed
    assert "widgets" not in notebook.metadata
    for cell in notebook.cells[1:3]:
        output, below = cell.outputs
        assert WIDGET not in output["data"]
        assert below["data"] == {"text/plain": ""}
        assert "1 phase over 6 steps" in output["data"]["text/html"]  # what was shown last
    html = as_html(notebook)
    seen = Page(html)
    assert sum(value.startswith("data:image/svg+xml") for name, value in seen.attributes if name == "src") == 6
    assert "Phases by share of step time without waits" in seen.text
    assert "widget-view" not in html


def test_a_notebook_that_was_not_frozen_shows_them_too(view):
    from nbformat import v4

    data, _ = view._repr_mimebundle_()
    output = v4.new_output("display_data", data=data)
    html = as_html(v4.new_notebook(cells=[v4.new_code_cell("view", outputs=[output])]))
    assert Page(html).tags.count("img") == 2
    assert "table" in Page(html).tags
