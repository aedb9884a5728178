"""`shared_cores`: what the number of cores means for a comparison of workers."""

from __future__ import annotations

from lopa_lab.experiments.run.record import ExperimentRecord


def shared_cores(record: ExperimentRecord, workers: int, *, on_this_machine: bool) -> str:
    """A sentence, if so many workers have to share the cores of the record's machine; else nothing."""
    machine = record.machine
    if machine.accelerators or not on_this_machine or machine.cores > workers:
        return ""
    return (
        f" The {workers} workers share {machine.cores} cores with each other, with their masters and with the client, "
        "so the cores bound the gain of more workers here: these figures do not show what workers with devices of "
        "their own would gain."
    )
