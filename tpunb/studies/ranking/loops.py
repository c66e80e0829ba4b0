"""What nested loops over arrays cost on one core: the order of the loops, elements with gaps, lines, pages and tiles.

Three facts of XLA's code for a CPU decide which order of an array is slow. A vector instruction reads neighbours. A
line of the cache is evicted before its other elements are used where the inner loops touch more lines than fit (Lam,
Rothberg, Wolf: The Cache Performance of Blocked Algorithms, 1991). And the loops are not those of the program: LLVM
interchanges two where more arrays have the other order, and XLA runs kernels of elementwise operations and transposes
alone in tiles of 16 by 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Loops = list[tuple[int, int]]
"""Size of each nested loop, innermost first, and the bytes between the elements of an array along it."""

_ACCESS = {"gapped": 0.17, "lines": 0.44, "aliased": 1.9, "pages": 0.15}
_WRITE = {"gapped": 0.34, "lines": 0.17, "aliased": 1.4, "pages": 1.7}
_TILED = {"elements": 0.05, "transposed": 0.27, "lines": 0.23}
COSTS: dict[str, float] = {
    "kernels": 8100.0,
    "unseen bytes": 0.02,
    "contiguous": 0.03,
    **{f"read {name}": cost for name, cost in _ACCESS.items()},
    **{f"written {name}": cost for name, cost in _WRITE.items()},
    **{f"tiled {name}": cost for name, cost in _TILED.items()},
}
"""Nanoseconds of each on a core of an EPYC 9004: ``datasets/layouts/costs.py`` fits them to 900 small kernels."""

_LINE, _PAGE, _TILE = 64, 4096, 16  # bytes, bytes, elements
_LINES, _PAGES = (_LINE, 64, 8), (_PAGE, 1, 64)  # bytes, sets and ways of the first cache, and of the cache of pages


def cost(arrays: Sequence[tuple[Loops, int]], *, tiled: bool, interchange: bool = True) -> npt.NDArray[np.float64]:
    """Return how often each of ``COSTS`` occurs in a kernel, but the first two.

    `arrays` are the loops and the bytes of an element of each; the first is written.

    >>> rows, columns = [(64, 4), (64, 256)], [(64, 256), (64, 4)]
    >>> kernel = cost([(rows, 4), (columns, 4)], tiled=False)
    >>> dict(zip([*COSTS][2:], kernel.tolist(), strict=True))["read gapped"]
    4096.0
    """
    sizes = [size for size, _ in arrays[0][0]]
    elements = math.prod(sizes)
    counts = np.zeros(len(COSTS) - 2)
    if tiled and sizes:
        inner = [[step if step else math.inf for _, step in loops] for loops, _ in arrays]
        minor = [steps.index(min(steps)) for steps in inner]
        lines = sum(min(elements, fetched(_in_tiles(loops, sorted({*minor})), *_LINES)) for loops, _ in arrays)
        counts[-3:] = elements * len(arrays), elements * sum(k != minor[0] for k in minor), lines
        return counts
    order = _interchanged([loops for loops, _ in arrays]) if interchange else range(len(sizes))
    for number, (loops, item) in enumerate(arrays):
        turned = [loops[k] for k in order] if len(loops) == len(sizes) else loops
        turned = [loop for loop in turned if loop[0] > 1]
        size, step = turned[0] if turned else (1, 0)
        count = math.prod(n for n, _ in turned)
        aliased = count * (step > 0 and step % _PAGE == 0 and size > 8)  # each element in one set of the first cache
        counts[0] += count * (step == item)
        lines, pages = (min(count, fetched(turned, *cache)) for cache in (_LINES, _PAGES))
        at = 5 if number == 0 else 1
        counts[at : at + 4] += (count * (step > item), lines, aliased, pages) if turned else 0
    return counts


def _interchanged(arrays: Sequence[Loops]) -> list[int]:
    """Return the order of loops in which most arrays have the smaller of two steps in the inner one."""
    order = [*range(len(arrays[0]))]
    for _ in order:
        for k in range(len(order) - 1):
            inner, outer = order[k : k + 2]
            pairs = [(loops[inner][1], loops[outer][1]) for loops in arrays]
            if sum((a < b) - (a > b) for a, b in pairs if a and b) < 0:
                order[k : k + 2] = outer, inner
    return order


def _in_tiles(loops: Loops, cut: Sequence[int]) -> Loops:
    """Return loops over the elements of tiles, then over tiles."""
    inner = [(min(_TILE, loops[k][0]), loops[k][1]) for k in cut]
    return inner + [(-(-n // _TILE), _TILE * step) if k in cut else (n, step) for k, (n, step) in enumerate(loops)]


def fetched(loops: Loops, line: int, sets: int, ways: int) -> int:
    """Return the lines that loops over an array fetch into a cache.

    A line stays in the cache while an outer loop returns to it if the lines that the inner loops touch in the meantime
    fit into the sets that they are in.

    >>> fetched([(64, 4), (64, 256)], 64, 64, 8), fetched([(1024, 4096), (1024, 4)], 64, 64, 8)
    (256, 1048576)
    """
    count = touched = spread = 1  # `spread`: sets that the touched lines are in
    for size, step in loops:
        lines = size if step >= line else max(1, -(-size * step // line))
        count *= lines if touched <= spread * ways else size
        if step:
            touched *= lines
            apart = max(step, line)
            spread = min(
                sets, spread * min(lines, sets if apart % line else sets * line // math.gcd(sets * line, apart))
            )
    return count


def merged(loops: Loops, sizes: Sequence[int]) -> Loops | None:
    """Return loops of some sizes that visit an array in the same order; None if there are none.

    >>> merged([(4, 8), (2, 32)], [8]), merged([(4, 8), (2, 64)], [8])
    ([(8, 8)], None)
    """
    result: Loops = []
    left = [loop for loop in loops if loop[0] > 1][::-1]
    for size in sizes:
        n, step = left.pop() if left else (0, 0)
        while 0 < n < size and left and left[-1][1] == n * step:
            n *= left.pop()[0]
        if n != size:
            return None
        result.append((n, step))
    return None if left else result
