"""A shuffle without a list: computes the item at each place of a permutation of 0..n-1. The same seed gives
the same permutation in every process.

The master shuffles shards with it, and the members of a collective job shuffle the records of an epoch.
"""

from array import array
from math import isqrt
from random import Random

_ROUNDS = 3
_MIN_SIDE = 4
"""Makes the rectangle large enough to mix even a handful of items."""


class Permutation:
    """A seeded permutation of `range(size)`, computed item by item.

    An alternating Feistel network (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): items
    are cells of a rectangle slightly larger than `size`. Each round shifts a cell's row by a random amount
    that depends on its column, then its column by a random amount that depends on its row. Each shift can be
    reversed, so all rounds together are a permutation of the rectangle. If the result lies outside
    `range(size)`, the rounds are applied to it again until a result lies inside. This needs memory for
    O(sqrt(size)) shifts (75 KB for 10 million items), whereas a shuffled list needs O(size).

    Args:
        size: number of items, at least 1.
        seed: any text; equal texts give equal permutations.
    """

    __slots__ = ("_columns", "_rounds", "_rows", "_size")

    def __init__(self, size: int, seed: str) -> None:
        self._size = size
        self._rows = rows = max(isqrt(size), _MIN_SIDE)
        self._columns = columns = max(-(-size // rows), _MIN_SIDE)
        # Seeding with text and random() are both specified to give the same numbers in all Python versions.
        draw = Random(seed).random  # noqa: S311 - shuffles data, guards nothing
        self._rounds = tuple(
            (
                array("q", (int(draw() * rows) for _ in range(columns))),
                array("q", (int(draw() * columns) for _ in range(rows))),
            )
            for _ in range(_ROUNDS)
        )

    def __getitem__(self, place: int) -> int:
        """The item at `place` (0 <= place < size)."""
        rows, columns, size = self._rows, self._columns, self._size
        while True:
            row, column = divmod(place, columns)
            for row_shifts, column_shifts in self._rounds:
                row = (row + row_shifts[column]) % rows
                column = (column + column_shifts[row]) % columns
            place = row * columns + column
            if place < size:
                return place
