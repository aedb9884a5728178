"""How tiles of long lanes are split into parts (see `slot_attention`).

Shape suffixes: N tiles, P parts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lopa_ray.kernels.padding import bucket_rows
from lopa_ray.kernels.slot_attention import MAX_SPLIT_ROWS, PART_COLUMNS, PART_KEYS, TILE_COLUMNS

NO_PARTS = np.zeros((0, PART_COLUMNS), np.int64)


def num_parts(rows: npt.NDArray[np.int64], seen: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The number of parts of the tiles of each lane, from its number of rows and the end of the positions it sees.

    All are int64 [lanes]. A number of 1 means that the tiles are not split.
    """
    return np.where(rows <= MAX_SPLIT_ROWS, np.maximum(-(-seen // PART_KEYS), 1), 1)


def parts_of_tiles(tiles: npt.NDArray[np.int64], parts_of: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The parts, int64 [P, 7], of tiles int64 [N, 5], each of which has as many as `parts_of` int64 [N] says.

    There is padding, so that P is one of few numbers.
    """
    count = int(parts_of.sum())
    parts = np.zeros((bucket_rows(count), PART_COLUMNS), np.int64)
    first = np.cumsum(parts_of) - parts_of
    parts[:count, :TILE_COLUMNS] = np.repeat(tiles, parts_of, axis=0)
    parts[:count, TILE_COLUMNS] = np.arange(count) - np.repeat(first, parts_of)
    parts[:count, TILE_COLUMNS + 1] = np.repeat(parts_of, parts_of)
    return parts
