"""`draw_over_tpf`: what decoders give, over their TPF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lopa_lab.experiments.run.outcomes import Name
from lopa_lab.records.figure import error_bars
from lopa_lab.records.intervals import Array, estimate


def draw_over_tpf(
    axes: Sequence[Any],
    lines: Mapping[str, Sequence[Name]],
    tpf: Mapping[Name, Array],
    rows: Mapping[str, Mapping[Name, Array]],
) -> None:
    """Draw a line with intervals for each of `lines`, on axes below each other.

    `rows` has for each of the axes its label and the figures on it; figures are [1 + resamples] of float64.
    """
    for index, (label, names) in enumerate(lines.items()):
        xs = [estimate(tpf[name]) for name in names]
        for axis, values in zip(axes, rows.values(), strict=True):
            style: dict[str, Any] = {"linewidth": 1, "elinewidth": 0.6, "markersize": 4, "label": label}
            error_bars(axis, xs, [estimate(values[name]) for name in names], index, **style)
    for axis, label in zip(axes, rows, strict=True):
        axis.set_ylabel(label)
    axes[-1].set_xlabel("TPF")
    axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=3)
