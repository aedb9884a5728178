"""`write_page`: a page of findings from a folder of records, with their plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lopa_lab.experiments.run.experiment import Experiment
from lopa_lab.experiments.run.record import ExperimentRecord
from lopa_lab.experiments.run.runner import write_figure
from lopa_lab.experiments.run.section import section
from lopa_lab.records.figure import require_matplotlib
from lopa_lab.records.files import replace_file
from lopa_lab.records.markdown import table
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
    """Write `page` from the records in the folder `records`, in the order of `questions`, with plots beside it.

    Questions without a record are named as such. Raises SettingsError if there are no records, one cannot be read or
    is of no experiment, or matplotlib is missing.
    """
    require_matplotlib()
    found = {
        record.experiment: record for record in map(ExperimentRecord.read, sorted(records.glob("*.json")))
    }
    if not found:
        raise SettingsError(
            f"{records} has no records; make one: lopa experiment branches --output {records}"
        )
    unknown = next((name for name in found if name not in questions), None)
    if unknown is not None:
        raise SettingsError(f"{records} has a record of {unknown}; allowed: {', '.join(questions)}")
    headlines = {name: load(name).finding(found[name]).headline for name in questions if name in found}
    listed = [[questions[name], headline] for name, headline in headlines.items() if headline]
    sections = [INTRODUCTION]
    if {record.setup.model for record in found.values()} == {"demo"}:
        sections.append(OF_THE_DEMO)
    if len({record.setup.weights for record in found.values()}) > 1:
        sections.append("**The records are of different weights**; each section names its own.\n")
    sections.append(table(["question", "in short"], listed) + "\n")
    for name, question in questions.items():
        if name not in found:
            continue
        figure = f"{FIGURES}/experiment-{name}.svg"
        write_figure(load(name), found[name], page.parent / figure)
        sections.append(section(found[name], load(name), question, heading="##", figure=figure))
    missing = [name for name in questions if name not in found]
    if missing:
        sections.append(f"Without a record: {', '.join(missing)}.\n")
    replace_file(page, "\n".join(sections))
