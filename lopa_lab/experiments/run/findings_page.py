"""Records in Markdown: the section of one, and the page of findings from a folder of records, with their plots."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lopa_lab.experiments.run.experiment import Experiment, ExperimentRecord
from lopa_lab.records.figure import require_matplotlib, svg_image
from lopa_lab.records.markdown import code_block, slug, table
from lopa_lab.records.record import replace_file
from lopa_ray.errors import SettingsError

FIGURES = "figures"

INTRODUCTION = """# Findings

What experiments say about open questions of LoPA; intervals are in the sections.
"""

OF_THE_DEMO = """\
**All findings are measured on one small model, on problems that it was trained for**: the model in the package, whose
answers have a few dozen tokens. They show how decoders behave, not how large a figure is for a model with billions of
parameters. Where a finding disagrees with the paper, both may be right for their models.
"""

HOW_TO_MEASURE = """\
A command writes data, plot and finding, and goes on where it was interrupted. `--model` takes another model, for the
same problems and the same grading of a last line `#### number`:

```
lopa experiment branches --output experiments
```

`lopa experiment report` writes this page from `benchmarks/experiments`. In brackets: 95 % bootstrap intervals over
problems; the last row of a table says how far they reach at most, and the commands write them all. What is called best
was chosen on the same problems as its figures, which are slightly too high.
"""

INTERVAL = re.compile(r"(\S+) \[(\S+) to (\S+)\]")


def write_page(
    questions: Mapping[str, str], load: Callable[[str], Experiment], records: Path, page: Path
) -> None:
    """Write `page` from the records in the folder `records`, in the order of `questions`, with plots next to it.

    Questions without a record are named as such. Raises SettingsError if there are no records, one cannot be read or
    is of no experiment, or matplotlib is missing.
    """
    require_matplotlib()
    by_name = {record.name: record for record in map(ExperimentRecord.read, sorted(records.glob("*.json")))}
    if not by_name:
        raise SettingsError(
            f"{records} has no records; make one: lopa experiment branches --output {records}"
        )
    unknown = next((name for name in by_name if name not in questions), None)
    if unknown is not None:
        raise SettingsError(f"{records} has a record of {unknown}; allowed: {', '.join(questions)}")
    (usual, _), *_ = Counter(map(_origin, by_name.values())).most_common(1)
    listed, measured, missing = [], [], []
    for name, question in questions.items():
        if name not in by_name:
            missing.append(name)
            continue
        record, experiment, figure = by_name[name], load(name), f"{FIGURES}/experiment-{name}.svg"
        headline = INTERVAL.sub(r"\1", experiment.finding(record).headline)
        if headline:
            listed.append([f"[{question}](#{slug(question)})", headline])
        write_figure(experiment, record, page.parent / figure)
        measured.append(section(record, experiment, question, heading="##", figure=figure, usual=usual))
    sections = [INTRODUCTION]
    if {record.setup.model for record in by_name.values()} == {"demo"}:
        sections.append(OF_THE_DEMO)
    if len({record.setup.weights for record in by_name.values()}) > 1:
        sections.append("**The records are of different weights**; each section names its own.\n")
    sections += [table(["question", "in short"], listed) + "\n", HOW_TO_MEASURE]
    sections += [f"Unless a section says otherwise: {usual}\n", *measured]
    if missing:
        sections.append(f"Without a record: {', '.join(missing)}.\n")
    replace_file(page, "\n".join(sections))


def section(
    record: ExperimentRecord,
    experiment: Experiment,
    question: str,
    *,
    heading: str,
    figure: str,
    usual: str | None = None,
) -> str:
    """The question, the finding, the plot at the address `figure`, the table, and how all of it was measured.

    `usual`: what the page says of the origin of its records; its tables have values without intervals.
    """
    finding = experiment.finding(record)
    rows = finding.rows if usual is None else _values(finding.rows)
    method = f"**Method.** {experiment.method} {experiment.describe_problems(record.setup)}."
    if usual is None or experiment.resampled != "problems":
        method += f" In brackets: 95 % bootstrap intervals over {experiment.resampled}."
    parts = [
        f"{heading} {question}",
        finding.text,
        f"![{record.name}]({figure})",
        *(
            [f"**The paper.** {experiment.paper} {finding.against_paper}".rstrip()]
            if experiment.paper
            else []
        ),
        table(finding.header, rows),
        method,
        code_block(record.command_line),
    ]
    origin = _origin(record)
    return "\n\n".join(parts if origin == usual else [*parts, origin]) + "\n"


def _origin(record: ExperimentRecord) -> str:
    """The model of a record, and where the record is from."""
    setup = record.setup
    weights = f", weights {setup.weights}" if setup.weights is not None else ""
    return f"model {setup.model}{weights}; {record.origin}"


def _values(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Rows of a table without intervals, and a row of how far the intervals of each column reach at most."""
    columns = zip(*([INTERVAL.findall(cell) for cell in row] for row in rows), strict=True)
    farthest = ["; ".join(map(_reach, zip(*filter(None, column), strict=True))) for column in columns]
    return [*([INTERVAL.sub(r"\1", cell) for cell in row] for row in rows), ["± at most", *farthest[1:]]]


def _reach(intervals: Sequence[tuple[str, str, str]]) -> str:
    """The largest difference between a value and an end of its interval, with the value's digits."""
    digits = len(intervals[0][0].partition(".")[2])
    reach = max(abs(float(end) - float(value)) for value, *ends in intervals for end in ends)
    return f"{reach:.{digits}f}"


def write_figure(experiment: Experiment, record: ExperimentRecord, path: Path) -> None:
    """Write the record's plot as an SVG file."""
    image = svg_image(lambda *axes: experiment.draw(record, *axes), experiment.plot_rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, image)
