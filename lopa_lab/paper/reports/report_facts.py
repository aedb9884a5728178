"""Facts about a run in its report besides figures, as pairs of a name and a text."""

from __future__ import annotations

from lopa_lab.paper.reports.report_content import Report


def run_facts(report: Report) -> list[tuple[str, str]]:
    """Task, model, problems, machine and versions."""
    run, machine = report.run, report.run.machine
    facts = {
        "task": f"{run.task} ({run.title}, {run.shots}-shot)",
        "score": f"{run.metric}, to be compared with the paper's score",
        "model": run.model,
        "configuration": run.config_name,
        "prompts": "messages, through the model's chat template" if run.chat else "plain text",
        "problems": report.decoded,
        "requests in flight": str(run.concurrency),
        "started": run.started.isoformat(timespec="seconds"),
        "code": run.commit or "installed package",
        "CPU": f"{machine.cpu}, {machine.cores} cores",
        "accelerators": ", ".join(machine.accelerators) or "none",
        "memory": "unknown" if machine.memory_bytes is None else f"{machine.memory_bytes / 2**30:.1f} GiB",
        "system": machine.os,
        "Python": machine.python,
        **machine.packages,
        **run.versions,
    }
    return [*facts.items()]
