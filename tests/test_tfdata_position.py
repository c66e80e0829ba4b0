"""Positions of tf.data iterators: why they cannot be saved."""

import pytest
from optional import lazy

from tpunb.tfdata import position

tf = lazy("tensorflow")


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (
            "{{function_node __wrapped__X}} PyFunc is stateful. [Op:SerializeIterator] name: ",
            "a stage of the data: it calls the Python function, which may keep state (if it keeps none, pass",
        ),
        (
            "{{function_node __wrapped__X}} GeneratorDataset does not support checkpointing. [Op:Serialize] name: .",
            "a stage of the data: the Python generator feeds it, and cannot continue in the middle (give fit arrays",
        ),
        ("{{node y}} the disk is full [Op:Z]", "the disk is full"),
        ("", "FailedPreconditionError"),
    ],
)
def test_the_reason_omits_tensorflows_internal_names(raised, reason):
    error = tf.errors.FailedPreconditionError(None, None, raised)
    assert position.explain(error).startswith(reason)
    assert "{{" not in position.explain(error)
