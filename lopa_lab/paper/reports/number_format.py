"""Numbers as people read them."""

from __future__ import annotations

from lopa_lab.paper.reports.statistics import MeasuredValue


def format_number(value: float | None, digits: int) -> str:
    """With thousands apart; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def format_interval(estimate: MeasuredValue, digits: int) -> str:
    """Both ends, on one line; empty without an interval."""
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{estimate.low:,.{digits}f}\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}{estimate.high:,.{digits}f}"


def format_published(value: float | None) -> str:
    """With the digits that it was given with; empty for None."""
    return "" if value is None else f"{value:,}"
