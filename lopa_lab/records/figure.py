"""Figures as SVG and PNG images. The same data gives the same SVG text."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from io import BytesIO, StringIO
from typing import IO, Any

from lopa_lab.records.intervals import Estimate
from lopa_ray.errors import SettingsError
from lopa_ray.extras import install_advice

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's colours, which colour-blind people can tell apart; without black and yellow, each of which is hard to
see on either a dark or a light page."""
MARKERS = "osD^vP"

INK = "#767676"
"""Text and axes: an image does not follow its page's colours, and this grey can be read on white and on black."""

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "font.size": 11,
    "grid.alpha": 0.18,
    "grid.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",  # text stays text: it can be searched, and takes the page's font
    "svg.hashsalt": "lopa-ray",
    "text.color": INK,
    "text.parse_math": False,  # labels are text, dollar signs too
    "xtick.color": INK,
    "ytick.color": INK,
}


def require_matplotlib() -> None:
    """Raises SettingsError if plots cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingsError(f"plots need matplotlib; {install_advice('eval')}")


def svg_image(draw: Callable[..., None], rows: Sequence[int] = (1,)) -> str:
    """Return an SVG image without the XML prologue. `draw` draws on axes below each other; `rows` has their heights."""
    text = StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    _save(draw, rows, text, format="svg", transparent=True, metadata=no_metadata)
    svg = re.sub(r"^.*?(?=<svg)", "", text.getvalue(), count=1, flags=re.DOTALL)
    # Groups are named alike in every figure, and ids have to be unique in a page. Nothing refers to them.
    return re.sub(r'<g id="[^"]*"', "<g", svg)


def png(draw: Callable[..., None], rows: Sequence[int] = (1,)) -> bytes:
    """Return a PNG image on white; arguments as for `svg_image`."""
    data = BytesIO()
    _save(draw, rows, data, format="png", dpi=150, facecolor="white")
    return data.getvalue()


def whole_numbers(*axes: Any) -> None:
    """Ticks of these axes (`Axes.xaxis`, `Axes.yaxis`) are whole numbers: they count steps, forwards or positions."""
    for axis in axes:
        axis.get_major_locator().set_params(integer=True)


def error_bars(
    axes: Any, xs: Sequence[Any], estimates: Sequence[Any], index: int, line: str = "-", **options: Any
) -> None:
    """Draw estimates (`value`, `low`, `high`) over `xs`, which are numbers or estimates too, with their intervals, in
    the colour and with the marker of `index`."""
    style = {"fmt": f"{MARKERS[index]}{line}", "color": PALETTE[index], **options}
    if any(isinstance(x, Estimate) for x in xs):
        style["xerr"] = _widths(xs)
        xs = [x.value for x in xs]
    axes.errorbar(xs, [estimate.value for estimate in estimates], yerr=_widths(estimates), **style)


def _widths(estimates: Sequence[Any]) -> list[list[float]]:
    """Distances by which intervals reach below and above their values."""
    return [[each.value - each.low for each in estimates], [each.high - each.value for each in estimates]]


def _save(draw: Callable[..., None], rows: Sequence[int], file: IO[Any], **options: Any) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 3.9), layout="constrained")
        draw(*figure.subplots(len(rows), sharex=True, squeeze=False, height_ratios=rows).ravel())
        figure.savefig(file, **options)
