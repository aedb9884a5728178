"""`lopa bench report`: a page of all records of a folder, with plots."""

from __future__ import annotations

from pathlib import Path

from lopa_lab.bench.comparison import common_values, describe_machine, record_table
from lopa_lab.bench.plots import plots_of
from lopa_lab.bench.record import BenchRecord
from lopa_lab.records import markdown
from lopa_lab.records.figure import GREY, require_matplotlib
from lopa_ray.errors import SettingsError

RECORDS, PLOTS, PAGE = "records", "plots", "README.md"

INTRODUCTION = """# Benchmarks

`lopa bench report` writes this page from the files in `records/`. Each section names the command that made its record
and the machine that it ran on. Run the command with `--against records/NAME.json` to compare another machine or
version. `lopa bench all` makes all records of a kind of device. Findings are in [NOTES.md](NOTES.md).
"""


def write_report(folder: Path) -> Path:
    """Write the page and the plots of the records in `folder`; returns the page's path.

    Raises SettingsError if there are no records, one cannot be read, or matplotlib is missing.
    """
    require_matplotlib()
    paths = sorted((folder / RECORDS).glob("*.json"))
    if not paths:
        raise SettingsError(f"{folder / RECORDS} has no records; make some: lopa bench all --output {folder}")
    sections = [_section(path, folder) for path in paths]
    page = folder / PAGE
    page.write_text("\n".join([INTRODUCTION, *sections]), encoding="utf-8")
    return page


def _section(path: Path, folder: Path) -> str:
    """A record's part of the page, whose plots it writes."""
    record = BenchRecord.read(path)
    header, *rows = record_table(record)
    lines = [f"## {path.stem}", "", markdown.code_block(record.command_line), ""]
    lines += [
        f"{describe_machine(record)}; {record.started:%Y-%m-%d}, commit {record.commit or 'unknown'}.",
        "",
    ]
    for what, plot in plots_of(record):
        file = folder / PLOTS / f"{path.stem}-{what.replace(' ', '-')}.svg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(plot.replace("currentColor", GREY), encoding="utf-8")
        lines += [f"![{what}]({PLOTS}/{file.name})", ""]
    common = common_values(record)
    lines += [markdown.table(header, rows), ""]
    lines += [f"All rows: {common}.", ""] if common else []
    return "\n".join([*lines, record.method, ""])
