"""How many rows matmuls have: padded, so that the bits of a row do not depend on the number of rows."""

from __future__ import annotations

ROW_MULTIPLE = 16
"""Matmuls have a multiple of this number of rows, also of an expert. On CPU a row then has the same bits for any
other rows, as observed with 1 and 2 threads: every thread needs at least 4 rows."""

MOST_FEW_ROWS = 32
"""Rows up to which a step of oneDNN's products has no padding."""


def padded_rows(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def few_rows(rows: int) -> int:
    """The padded number of rows where bits may depend on it, and products cost by the row. Large numbers are few:
    oneDNN prepares for each anew, which takes 2 ms."""
    return rows if rows <= MOST_FEW_ROWS else padded_rows(rows)


def several_rows(rows: int) -> int:
    """The same with two rows at least: a single row is multiplied in another order of sums."""
    return max(rows, 2) if rows <= MOST_FEW_ROWS else padded_rows(rows)


def bucket_rows(rows: int) -> int:
    """The padded number of rows of a step: 8 sizes between two powers of 2, so that few graphs serve all steps."""
    step = max(ROW_MULTIPLE, 1 << max(0, (rows - 1).bit_length() - 4))
    return -(-rows // step) * step
