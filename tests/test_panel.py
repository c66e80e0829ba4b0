"""What the widgets share: a page that asks, a kernel that answers, errors that are seen."""

import threading
import time

import pytest
from traitlets import Int, TraitError, validate

from tpunb.errors import NoSteps
from tpunb.testing import toy_steps
from tpunb.widgets.explorer import explore
from tpunb.widgets.panel import Panel, Refused, asset, format_error, module


class Toy(Panel):
    """Answers with what it is told, and keeps what it sends."""

    _esm = "export default {}"
    size = Int(1).tag(sync=True)

    def __init__(self):
        self.sent, self.inside, self.most = [], 0, 0
        super().__init__()

    def answers(self):
        return {
            **super().answers(),
            "echo": lambda text="": ({"text": text}, [b"1"]),
            "work": self.work,
            "fail": self.fail,
        }

    def work(self):
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.002)
        self.inside -= 1
        return {}, []

    def fail(self):
        raise NoSteps("there is nothing\x1b[31m here", hint="look elsewhere")

    def send(self, content, buffers=None):
        self.sent.append((content, buffers))

    @validate("size")
    def _small(self, proposal):
        if proposal["value"] > 9:
            raise Refused("The size must be 9 or less.")
        return proposal["value"]


def asked(view, content):
    view._asked(None, content, [])
    return view.sent[-1] if view.sent else None


def test_an_answer_has_the_number_of_its_question():
    view = Toy()
    assert asked(view, {"ask": "echo", "id": "7-1", "with": {"text": "a"}}) == ({"text": "a", "answer": "7-1"}, [b"1"])
    assert asked(view, {"ask": "echo", "id": 2})[0] == {"text": "", "answer": 2}
    answer, (vega,) = asked(view, {"ask": "vega", "id": 3, "with": {}})
    assert answer == {"answer": 3}
    assert b"vegaEmbed" in vega
    assert view.error == ""


def test_an_error_is_a_sentence():
    view = Toy()
    content, buffers = asked(view, {"ask": "fail", "id": 3})
    assert content == {"error": "there is nothing\ufffd[31m here; look elsewhere", "answer": 3}
    assert buffers == []
    assert view.error == content["error"]
    asked(view, {"ask": "echo", "id": 4})
    assert view.error == ""


RUBBISH = [
    {"ask": "nonsense", "id": 1},
    {"ask": None, "id": 1},
    {"ask": ["echo"], "id": 1},
    {"ask": "echo", "id": 1, "with": None},
    {"ask": "echo", "id": 1, "with": [1]},
    {"ask": "echo", "id": 1, "with": {"self": 1}},
    {"ask": "echo", "id": 1, "with": {1: 2}},
]


@pytest.mark.parametrize("content", RUBBISH, ids=str)
def test_an_unknown_question_is_an_error(content):
    view = Toy()
    answer, buffers = asked(view, content)
    assert answer["answer"] == 1
    assert answer["error"]
    assert buffers == []


@pytest.mark.parametrize("content", [None, "ask", 3, [], {}, {"id": 3}], ids=str)
def test_what_is_no_question_has_no_answer(content):
    view = Toy()
    assert asked(view, content) is None
    assert view.error == ""


def test_what_a_page_sets_and_may_not_is_shown_as_it_stays():
    view = Toy()
    states = []
    view.send_state = lambda key=None: states.append(key)
    view.set_state({"size": 99, "of nobody": 1})
    assert (view.size, view.error) == (1, "The size must be 9 or less.")
    assert ["size"] in states  # without names that it does not have
    view.set_state({"size": "x"})
    assert "expected an int" in view.error
    view.set_state({"size": 3})
    assert (view.size, view.error) == (3, "")


def test_a_refused_value_is_a_wrong_argument():
    view = Toy()
    with pytest.raises(ValueError, match="9 or less") as refused:
        view.size = 10
    assert isinstance(refused.value, TraitError)
    assert view.size == 1


def test_one_callback_at_a_time():
    view = Toy()
    threads = [
        threading.Thread(target=lambda: [view._asked(None, {"ask": "work", "id": i}, []) for i in range(10)])
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert view.most == 1
    assert [content for content, _ in view.sent if "error" in content] == []
    assert len(view.sent) == 30


def test_two_threads_leave_the_explorer_whole():
    view = explore(toy_steps("aaaabbbbczz"))
    wrong = []
    view.send = lambda content, buffers=None: wrong.append(content["error"]) if "error" in content else None
    view.observe(lambda change: change["new"] and wrong.append(change["new"]), "error")

    def clustering(i):
        value = {"method": "kmeans", "k": 1 + i % 4} if i % 2 else {"method": "ols", "threshold": i % 10 / 10}
        return {"clustering": value}

    def page(first):
        for i in range(12):
            view.set_state(clustering(first + i))
            view._asked(None, {"ask": "figures", "id": i}, [])
            view.set_state({"time_range": [0, 0.001 * (1 + i)]})

    threads = [threading.Thread(target=page, args=(first,)) for first in (0, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert view._curve["method"] == view.method
    assert view._clusters["code"] == view.code
    assert view._clusters["position"] == (view.k if view.method == "kmeans" else view.threshold)
    assert view._axis["edges"] == view.time_range
    again = explore(view.steps, method=view.value.method)
    assert view.value.labels.equals(again.value.labels)


def test_errors_in_a_line():
    assert format_error(NoSteps("a", hint="b")) == "a; b"
    assert format_error(ValueError("a\nb")) == "ValueError: a"
    assert format_error(Refused("a")) == "a"
    assert format_error(ZeroDivisionError("a")) == "ZeroDivisionError: a"


def test_modules_come_without_comments_and_ask_no_network():
    for file in ("explorer.js", "tuning_panel.js"):
        code = module(file)
        assert "\n//" not in code
        assert "export default { render };" in code
        assert "http" not in code.replace("http://www.w3.org/2000/svg", "")
        assert "innerHTML" not in code
    assert "@import" not in asset("explorer.css")
    assert "url(" not in asset("explorer.css")
