"""Kernels of programs: loops fetch what a simulated cache does, and are followed to the arrays that they read."""

import itertools
import math
from contextlib import suppress

import numpy as np
import pytest
from examples import examples
from hlo_protos import messages
from hypothesis import given
from hypothesis import strategies as st

from tpunb.errors import BadProfile
from tpunb.studies.ranking.graphs import module_of
from tpunb.studies.ranking.kernels import Kernels
from tpunb.studies.ranking.loops import COSTS, cost, fetched, merged

NAMES = [*COSTS]


def visited(loops):
    """Return the offsets that nested loops visit, in order."""
    sizes = [size for size, _ in loops][::-1]
    steps = [step for _, step in loops][::-1]
    return [sum(k * step for k, step in zip(at, steps, strict=True)) for at in itertools.product(*map(range, sizes))]


def missed(loops, line, sets, ways):
    """Return the lines that a cache with least recently used replacement fetches."""
    held = [[] for _ in range(sets)]
    count = 0
    for offset in visited(loops):
        number = offset // line
        lines = held[number % sets]
        if number in lines:
            lines.remove(number)
        else:
            count += 1
        lines.append(number)
        del lines[:-ways]
    return count


@pytest.mark.parametrize(
    ("loops", "expected"),
    [
        ([(64, 4), (64, 256)], 256),  # row by row: each line once
        ([(64, 256), (64, 4)], 256),  # column by column: the 64 lines of a column stay
        ([(128, 256), (16, 4)], 128),  # 128 lines in 16 of 64 sets: 8 each, as many as there are ways
        ([(256, 256), (16, 4)], 256 * 16),  # 16 lines a set: each is fetched for each element
        ([(16, 4096), (16, 4)], 16 * 16),  # all in one set
        ([(8, 4096), (16, 4)], 8),
        ([(100, 0), (4, 64)], 4),  # the same element again and again
        ([(5000, 64), (3, 0)], 15000),  # more lines than there is room for, three times
        ([(3, 4)], 1),
    ],
)
def test_fetched_lines_are_those_of_a_simulated_cache(loops, expected):
    assert fetched(loops, 64, 64, 8) == expected == missed(loops, 64, 64, 8)


SIZES = st.lists(st.integers(2, 6), min_size=1, max_size=3)


@examples(150)
@given(sizes=SIZES, order=st.randoms(use_true_random=False))
def test_a_cache_that_holds_all_fetches_each_line_once(sizes, order):
    steps, step = [], 4
    for size in sizes:
        steps.append(step)
        step *= size
    loops = [*zip(sizes, steps, strict=True)]
    order.shuffle(loops)
    lines = len({offset // 64 for offset in visited(loops)})
    found = fetched(loops, 64, 1, 10_000)
    assert lines <= found <= math.prod(sizes)
    assert found == lines or any(step < 64 and (size * step) % 64 for size, step in loops)  # lines cut by a loop's end


@examples(150)
@given(sizes=SIZES, parts=st.data())
def test_merged_loops_visit_the_same_places(sizes, parts):
    steps = [parts.draw(st.sampled_from([1, 3, 8])) if k == 0 else None for k in range(len(sizes))]
    for k in range(1, len(sizes)):
        joins = parts.draw(st.booleans())
        steps[k] = steps[k - 1] * sizes[k - 1] * (1 if joins else 2)
    loops = [*zip(sizes, steps, strict=True)]
    total = math.prod(sizes)
    found = merged(loops, [total])
    if found is None:
        assert any(b != a * n for (n, a), (_, b) in itertools.pairwise(loops))
    else:
        assert visited(found) == visited(loops)
    assert merged(loops, sizes) == loops


def counts(row):
    return {name: value for name, value in zip(NAMES, row.tolist(), strict=True) if value}


def test_loops_are_interchanged_where_most_arrays_have_the_other_order():
    rows, columns = [(64, 4), (64, 256)], [(64, 256), (64, 4)]
    kept = counts(np.append([1.0, 0.0], cost([(rows, 4), (columns, 4)], tiled=False)))
    assert kept["read gapped"] == 64 * 64  # one of each: the order of the result stays
    assert "written gapped" not in kept
    turned = counts(np.append([1.0, 0.0], cost([(rows, 4), (columns, 4), (columns, 4)], tiled=False)))
    assert turned["written gapped"] == 64 * 64  # two read against one written
    assert turned["contiguous"] == 2 * 64 * 64
    same = cost([(rows, 4), (columns, 4), (columns, 4)], tiled=False, interchange=False)
    assert counts(np.append([1.0, 0.0], same))["read gapped"] == 2 * 64 * 64


def test_tiles_bound_what_a_transpose_fetches():
    rows, columns = [(64, 4), (1024, 256)], [(64, 4096), (1024, 4)]
    plain = counts(np.append([1.0, 0.0], cost([(rows, 4), (columns, 4)], tiled=False)))
    tiled = counts(np.append([1.0, 0.0], cost([(rows, 4), (columns, 4)], tiled=True)))
    assert plain["read lines"] == 64 * 1024  # 64 lines of one set
    assert plain["read aliased"] == 64 * 1024
    assert tiled["tiled transposed"] == 64 * 1024
    assert "read lines" not in tiled
    assert tiled["tiled elements"] == 2 * 64 * 1024


# -- programs ---------------------------------------------------------------------------------------------------------


def lowered(function, *shapes):
    jax = pytest.importorskip("jax")
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(shape, "float32") for shape in shapes))


def planned(function, shapes, orders):
    """Return what the kernels of a function are expected to cost, by name."""
    proto = b"\x0a" + _varint(len(module := module_of(lowered(function, *shapes)))) + module
    return counts(Kernels(messages(proto), compiled=False).planned(orders)[0])


def _varint(number):
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


DEFAULT, TURNED = (0, 1, 2), (2, 1, 0)
SHAPE = (16, 32, 64)


def test_arguments_in_their_default_order_are_read_in_place():
    found = planned(lambda a, b: a * 2 + b, [SHAPE] * 2, [DEFAULT] * 2)
    assert found["kernels"] == 1
    assert "read gapped" not in found
    assert found["contiguous"] == 3 * 16 * 32 * 64


def test_an_argument_in_another_order_is_read_with_gaps():
    found = planned(lambda a, b: a * 2 + b, [SHAPE] * 2, [DEFAULT, TURNED])
    assert found["read gapped"] == 16 * 32 * 64


def test_a_transposed_argument_is_read_in_the_order_of_the_result():
    import jax.numpy as jnp

    def turned(a):
        return jnp.transpose(a, (2, 1, 0)) * 2

    assert "read gapped" not in planned(turned, [SHAPE], [TURNED])
    assert planned(turned, [SHAPE], [DEFAULT])["read gapped"] == 16 * 32 * 64


def test_a_product_copies_what_it_cannot_read_in_place():
    import jax.numpy as jnp

    def product(a, b):
        return a @ b

    assert planned(product, [(64, 32), (32, 48)], [(0, 1), (0, 1)]) == {}
    assert planned(product, [(64, 32), (32, 48)], [(0, 1), (1, 0)])["tiled transposed"] == 32 * 48
    # the transpose of a matrix is read in place; heads as the third dimension are not
    assert planned(lambda a, b: a @ b.T, [(64, 32), (48, 32)], [(0, 1), (0, 1)]) == {}
    heads = planned(
        lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), [(2, 16, 4, 32)] * 2, [(0, 1, 2, 3), (0, 2, 1, 3)]
    )
    assert heads["kernels"] == 2


def test_what_is_inside_a_loop_is_copied_once():
    from jax import lax

    def scanned(h, u, xs):
        return lax.scan(lambda h, x: (h @ u + x, h.sum()), h, xs)

    shapes = [(8, 16), (16, 16), (5, 8, 16)]
    assert (
        planned(scanned, shapes, [(0, 1), (1, 0), DEFAULT])["kernels"]
        == planned(scanned, shapes, [(0, 1), (0, 1), DEFAULT])["kernels"]
    )
    assert planned(scanned, shapes, [(0, 1), (1, 0), DEFAULT])["tiled transposed"] == 16 * 16


def test_compiled_programs_are_counted_by_run():
    from jax import lax

    def scanned(h, xs):
        return lax.scan(lambda h, x: (h * 2 + x, h.sum()), h, xs)

    found = []
    for steps in (3, 6):
        module = module_of(lowered(scanned, (8, 16), (steps, 8, 16)).compile())
        proto = b"\x0a" + _varint(len(module)) + module
        found.append(Kernels(messages(proto)).compiled()[0][0])
    assert found[1] - found[0] >= 3  # at least a kernel in each iteration more


def test_shared_parts_of_an_expression_are_followed_once():
    def doubled(a):
        for _ in range(40):  # 2**40 ways from the result to the argument
            a = a * a + 1
        return a

    assert planned(doubled, [SHAPE], [DEFAULT])["contiguous"] == 2 * 16 * 32 * 64


@examples(40)
@given(data=st.binary(max_size=60))
def test_no_bytes_end_in_an_error_of_another_kind(data):
    with suppress(BadProfile):
        Kernels(messages(b"\x0a" + _varint(len(data)) + data)).compiled()
