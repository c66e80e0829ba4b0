"""What every verb reads: a path, a noun, or what a verb, a panel or a block returned."""

import pytest
from stand_in import StandIn

import tpunb as tp
from tpunb.analysis.run import loaded
from tpunb.testing import toy_window

STEPS = [(n, 1_000 * n, 1_000 * n + 900) for n in range(1, 7)]  # of hosts that end them at one moment, in ns
RETURNED = {
    "load": tp.load,
    "steps": tp.steps,
    "phases": tp.phases,
    "goodput": tp.goodput,
    "hosts": tp.hosts,
    "report": tp.report,
    "roofline": tp.roofline,
    "summary": tp.summary,
    "explore": tp.explore,
}
VERBS = {
    **{name: verb for name, verb in RETURNED.items() if name != "load"},
    "advise": tp.advise,
    "compare": lambda run: tp.compare(run, run),
    "explore other": lambda run: tp.explore(tp.testing.toy_steps("aaabbb"), other=run),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    ops = [("MatMul", begin, end) for _, begin, end in STEPS]
    folder = tmp_path_factory.mktemp("run")
    (folder / "a.xplane.pb").write_bytes(toy_window(1_000, 9_000, STEPS, ops))
    return folder


@pytest.fixture(scope="module")
def returned(path):
    return {name: verb(path) for name, verb in RETURNED.items()}


def shown(result):
    return repr(getattr(result, "value", result))  # a panel's value


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("result", RETURNED)
def test_every_verb_takes_what_any_verb_returned(path, returned, verb, result):
    noun = {"steps": returned["steps"], "phases": returned["phases"], "explore": returned["phases"]}.get(result, path)
    assert shown(VERBS[verb](returned[result])) == shown(VERBS[verb](noun))


@pytest.mark.live
@pytest.mark.parametrize("verb", [name for name in VERBS if name not in ("hosts", "roofline")])  # which read operations
def test_every_verb_takes_the_block_of_a_capture(tmp_path, verb):
    with tp.capture(tmp_path / "run", source=StandIn(), keep="none") as run:
        for step in range(3):
            with run.step(step):
                pass
    assert shown(VERBS[verb](run)) == shown(VERBS[verb](run.path))


def test_the_phases_of_a_result_are_those_that_it_shows(path):
    for result in (tp.summary(path, method="kmeans"), tp.explore(path, method="kmeans")):
        assert isinstance(tp.phases(result).method, tp.KMeans)
    profile = tp.load(path)
    assert loaded(tp.summary(profile), "report") is profile
    assert tp.load(tp.summary(profile)).name == profile.name


def test_a_result_without_one_run_is_refused_with_what_to_give():
    steps = tp.testing.toy_steps("aaabbb")
    for result in (tp.compare(steps, steps), tp.advise(steps), None, tp.testing.null_run):
        with pytest.raises(TypeError, match="The run parameter of report must be the path") as caught:
            tp.report(result)
        assert caught.value.__notes__ == [
            "Hint: give its path, or what tp.load or a cell with %%tpupoint returned (tpu); of a comparison, its a or b"
        ]
