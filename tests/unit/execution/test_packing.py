"""How many rows a step is padded to, and how lanes of few rows are packed."""

from __future__ import annotations

import numpy as np
import pytest

from lopa_ray.execution.lane import Lane, lanes_of
from lopa_ray.execution.packing import Packing, PackingOptions
from lopa_ray.kernels.padding import bucket_rows, few_rows, padded_rows, several_rows
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest
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


def test_a_causal_lane_may_score_the_position_behind_its_last_row():
    options = PackingOptions(1024, 1, Vocabulary(1000, 999, 998), few_rows)

    def lane(slot: int, start: int, ids: list[int], scored: range, causal_stop: int) -> Lane:
        stop = start + len(ids)
        branch = Branch(((stop, stop),), scored, causal_stop=causal_stop)
        plan = Plan(2, start, tuple(ids), (branch,), (range(start),))
        (made,) = lanes_of(ScheduledRequest(slot, slot, plan, (0,)))
        return made

    lanes = [
        lane(0, 10, [5, 6, 7], range(13, 14), causal_stop=13),
        lane(1, 20, [], range(20, 21), causal_stop=20),  # all is stored: the slot's boundary row decides
        lane(2, 30, [5, 999, 999], range(31, 33), causal_stop=0),
        lane(3, 40, [5, 999], range(41, 43), causal_stop=42),
        lane(4, 50, [5, 6], range(52, 53), causal_stop=0),  # not causal: a row of its own would decide
    ]
    packing = Packing(lanes, (), options)
    assert packing.num_rows == packing.rows_bucket == 10
    assert packing.rows_to_score.positions.tolist() == [13, 20, 31, 32, 41, 42]
    assert packing.columns.score_rows[:6].tolist() == [2, 10 + 1, 4, 5, 6, 7]
    assert [packing.rows_to_score.rows_of_lane(at).tolist() for at in range(5)] == [
        [0],
        [1],
        [2, 3],
        [4, 5],
        [],
    ]
