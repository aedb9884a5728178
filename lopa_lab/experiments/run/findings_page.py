"""Records in Markdown: the section of one, and the page of findings from a folder of records, with their plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lopa_lab.experiments.run.experiment import Experiment, ExperimentRecord
from lopa_lab.records.figure import require_matplotlib, svg_image
from lopa_lab.records.markdown import code_block, slug, table
from lopa_lab.records.record import replace_file
from lopa_ray.errors import SettingsError

FIGURES = "figures"

INTRODUCTION = """# Findings

What experiments say about open questions of LoPA. A command measures each; `lopa experiment --help` lists them. It
writes data, plot and finding to a folder, and an interrupted command continues when you run it again:

```
lopa experiment branches --output experiments
```

`lopa experiment report` generates this page from the records in `benchmarks/experiments`. A value in brackets behind a
figure is its 95 % interval, and a figure "does not clearly change" where the interval contains no change. What is
called best or fastest was chosen on the same problems as its figures, so its figures are slightly too high.
"""

OF_THE_DEMO = """\
**All findings are measured on one small model, on problems that it was trained for**: the model in the package, whose
answers have a few dozen tokens. They show how the decoder behaves, and whether a claim holds for any model. They do not
show how large a figure is for a model with billions of parameters. The commands take such a model (`--model`), with the
same problems and the same grading of a last line `#### number`. Where a finding disagrees with the paper, both may be
right for their models.
"""


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
    listed, measured, missing = [], [], []
    for name, question in questions.items():
        if name not in by_name:
            missing.append(name)
            continue
        record, experiment, figure = by_name[name], load(name), f"{FIGURES}/experiment-{name}.svg"
        headline = experiment.finding(record).headline
        if headline:
            listed.append([f"[{question}](#{slug(question)})", headline])
        write_figure(experiment, record, page.parent / figure)
        measured.append(section(record, experiment, question, heading="##", figure=figure))
    sections = [INTRODUCTION]
    if {record.setup.model for record in by_name.values()} == {"demo"}:
        sections.append(OF_THE_DEMO)
    if len({record.setup.weights for record in by_name.values()}) > 1:
        sections.append("**The records are of different weights**; each section names its own.\n")
    sections += [table(["question", "in short"], listed) + "\n", *measured]
    if missing:
        sections.append(f"Without a record: {', '.join(missing)}.\n")
    replace_file(page, "\n".join(sections))


def section(
    record: ExperimentRecord, experiment: Experiment, question: str, *, heading: str, figure: str
) -> str:
    """The question, the finding, the plot at the address `figure`, the table, and how all of it was measured."""
    finding = experiment.finding(record)
    setup = record.setup
    weights = f", weights {setup.weights}" if setup.weights is not None else ""
    return "\n\n".join(
        [
            f"{heading} {question}",
            finding.text,
            f"![{question}]({figure})",
            f"**The paper.** {experiment.paper} {finding.against_paper}".rstrip(),
            table(finding.header, finding.rows),
            f"**Method.** {experiment.method} {experiment.describe_problems(setup)}; model "
            f"{setup.model}{weights}. In brackets: 95 % bootstrap intervals over {experiment.resampled}.",
            code_block(record.command_line),
            f"{record.origin}\n",
        ]
    )


def write_figure(experiment: Experiment, record: ExperimentRecord, path: Path) -> None:
    """Write the record's plot as an SVG file."""
    image = svg_image(lambda *axes: experiment.draw(record, *axes), experiment.plot_rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, image)
