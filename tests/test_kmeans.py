import numpy as np
import pytest
from sklearn.cluster import KMeans as Lloyd

from tpunb.cluster import KMeans
from tpunb.cluster.features import space
from tpunb.testing import toy_steps

BOTH = pytest.mark.parametrize("method", [KMeans(), KMeans.paper()], ids=repr)


@BOTH
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("aaabbb", [0, 0, 0, 1, 1, 1]),
        ("aaaabbbbcccc", [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]),
        ("aaabbbaaabbb", [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]),
        ("bbbaaa", [0, 0, 0, 1, 1, 1]),
        ("aaaaaa", [0] * 6),
        ("a", [0]),
    ],
)
def test_finds_the_letters(method, pattern, expected):
    assert method(toy_steps(pattern)) == expected


def test_k_is_what_you_say():
    labels = KMeans(k=2)(toy_steps("aaaabbbbcccc"))
    assert set(labels) == {0, 1}
    assert labels.sweeps["k"].select("k", "chosen").rows() == [(2, True)]


@pytest.mark.filterwarnings("error")
def test_no_more_phases_than_steps_that_differ():
    assert KMeans(k=5)(toy_steps("aabb")) == [0, 0, 1, 1]


@BOTH
def test_the_error_never_rises(method):
    sweep = method(toy_steps("abcdefghijklmnopqr" * 2)).sweeps["k"]
    assert sweep["k"].to_list() == list(range(1, 16))
    assert (np.diff(sweep["sse"]) <= 0).all()


@pytest.mark.parametrize(("method", "features"), [(KMeans(), "default"), (KMeans.paper(), "paper")])
def test_the_error_is_that_of_every_step(method, features):
    steps = toy_steps("aaaaabbbccd")
    sweep = method(steps).sweeps["k"]
    for k, sse, _ in sweep.rows():
        whole = Lloyd(k, n_init=10, random_state=0).fit(space(steps, features).points)
        assert sse == pytest.approx(whole.inertia_, abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 0}, "The k parameter of KMeans must be an int of 1 or more. Got 0 instead."),
        ({"k": 2.5}, "The k parameter of KMeans must be an int of 1 or more. Got 2.5 instead."),
        ({"k_max": 0}, "The k_max parameter of KMeans must be an int of 1 or more. Got 0 instead."),
        ({"seed": -1}, "The seed parameter of KMeans must be an int of 0 or more. Got -1 instead."),
        ({"features": "raw"}, "The features parameter of KMeans must be one of .* Got 'raw' instead."),
        ({"elbow": "bent"}, "The elbow parameter of KMeans must be one of .* Got 'bent' instead."),
    ],
)
def test_wrong_parameters(wrong, message):
    with pytest.raises(ValueError, match=message):
        KMeans(**wrong)


def test_says_what_it_is():
    assert repr(KMeans()) == "KMeans()"
    assert repr(KMeans.paper()) == "KMeans(features='paper', elbow='linear')"
