"""How many rows a step is padded to, and how lanes of few rows are packed."""

from __future__ import annotations

import numpy as np
import pytest

from lopa_ray.execution.lane import Lane
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.kernels.padding import bucket_rows, few_rows, padded_rows, several_rows
from lopa_ray.protocol.vocabulary import Vocabulary


def test_buckets_waste_little():
    for rows in range(1, 5000, 7):
        assert rows <= padded_rows(rows) < rows + 16 and padded_rows(rows) % 16 == 0
        bucket = bucket_rows(rows)
        assert rows <= bucket <= max(16 * -(-rows // 16), rows * 9 / 8)
        assert bucket_rows(bucket) == bucket and bucket % 16 == 0
    assert len({bucket_rows(rows) for rows in range(1, 4097)}) < 60
    assert [few_rows(rows) for rows in (1, 2, 5, 17, 32, 33, 48)] == [1, 2, 5, 17, 32, 48, 48]
    assert [several_rows(rows) for rows in (1, 2, 5, 32, 33)] == [2, 2, 5, 32, 48]


@pytest.mark.parametrize("bucket", [padded_rows, bucket_rows, few_rows, several_rows])
@pytest.mark.parametrize(("lanes", "rows"), [(64, 1), (32, 1), (7, 3), (40, 0), (1, 0)])
def test_many_short_lanes_take_tiles_and_no_rows(lanes, rows, bucket):
    """A lane whose rows are all stored has none."""
    options = PackingOptions(1024, 1, Vocabulary(1000, 999, 998, shifted=True), bucket)
    segments = ((10 + rows, 10 + rows),) if rows else ()
    packing = Packing([Lane(at, 10, np.zeros(rows, np.int64), segments) for at in range(lanes)], (), options)
    assert packing.rows_bucket == bucket(max(1, lanes * rows))
    padding = packing.rows_bucket - lanes * rows
    assert (packing.columns.tiles[:, 3] > 0).sum() == (lanes if rows else 0) + (padding > 0)
    first_rows = packing.columns.lanes[:, 2]
    assert first_rows[-1] == packing.rows_bucket and (np.diff(first_rows) >= 0).all()
