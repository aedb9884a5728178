"""`section`: a record in Markdown."""

from __future__ import annotations

from lopa_lab.experiments.run.experiment import Experiment
from lopa_lab.experiments.run.record import ExperimentRecord
from lopa_lab.records.markdown import code_block, table


def section(
    record: ExperimentRecord, experiment: Experiment, question: str, *, heading: str, figure: str
) -> str:
    """The question, the finding, the plot at the address `figure`, the table, and how all of it was measured."""
    finding = experiment.finding(record)
    setup = record.setup
    weights = f", weights {setup.weights}" if setup.weights is not None else ""
    return "\n\n".join(
        [
            f"{heading} {record.experiment}",
            f"*{question}*",
            finding.text,
            f"![{record.experiment}]({figure})",
            f"**The paper.** {experiment.paper} {finding.against_paper}".rstrip(),
            table(finding.header, finding.rows),
            f"**Method.** {experiment.method} {experiment.describe_problems(setup)}; model "
            f"{setup.model}{weights}. In brackets: 95 % bootstrap intervals over {experiment.resampled}.",
            code_block(record.command_line),
            f"{record.machine.describe(record.version)}; {record.started:%Y-%m-%d}, "
            f"commit {record.commit or 'unknown'}.\n",
        ]
    )
