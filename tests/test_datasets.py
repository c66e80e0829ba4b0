"""What is said of data whose position cannot be saved."""

import pytest

from tpunb.resuming import datasets

tf = pytest.importorskip("tensorflow")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            "{{function_node __wrapped__X}} PyFunc is stateful. [Op:SerializeIterator] name: ",
            "PyFunc: a Python function (",
        ),
        (
            "{{function_node __wrapped__X}} GeneratorDataset does not support checkpointing. [Op:Serialize] name: .",
            "GeneratorDataset: a Python function (from_generator) feeds it",
        ),
        ("{{node y}} the disk is full [Op:Z]", "the disk is full"),
        ("", "FailedPreconditionError"),
    ],
)
def test_why_a_position_cannot_be_saved_is_told_without_tensorflows_own_names(raised, told):
    error = tf.errors.FailedPreconditionError(None, None, raised)
    assert datasets.stateful(error).startswith(told)
    assert "{{" not in datasets.stateful(error)
