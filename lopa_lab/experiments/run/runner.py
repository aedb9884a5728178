"""`run_experiment`: measures what is missing, and writes the files of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from cluster.command_line.progress import ShownTask
from lopa_lab.experiments.run.experiment import Experiment, ExperimentRecord
from lopa_lab.experiments.run.findings_page import section, write_figure
from lopa_lab.experiments.run.setup import Setup
from lopa_lab.experiments.run.workbench import Workbench
from lopa_lab.records.figure import png, require_matplotlib
from lopa_lab.records.machine import Machine, checkout_commit
from lopa_lab.records.points_log import MeasuredPoint, PointsLog
from lopa_lab.records.record import replace_file
from lopa_lab.word_problems import Problem, held_out_problems
from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.engine.config import Config


def run_experiment(
    name: str,
    experiment: Experiment,
    question: str,
    config: Config,
    *,
    problems: int,
    seed: int,
    folder: Path,
    command: Sequence[str],
) -> ExperimentRecord:
    """Measure the points that `folder` does not have yet; then write NAME.json, .svg, .png and .md there.

    What an interrupted call has measured stays in NAME.jsonl, and the next call continues from there. Raises
    SettingsError if that file is of another setup, a figure does not exist for these problems, or matplotlib is
    missing, and what engines raise.
    """
    from lopa_ray.engine.open_model import resolve_config

    require_matplotlib()
    config = resolve_config(config)
    machine = Machine.here(config.model.device)
    setup = Setup(
        problems=problems,
        seed=seed,
        problem_texts=text_fingerprint(held_out_problems(seed, problems)),
        model=config.model.path,
        weights=weights_fingerprint(config.model),
        settings=config.given(),
        timed_on=machine.hardware if experiment.timed else None,
    )
    measured = PointsLog(folder / f"{name}.jsonl", setup)
    points = experiment.points()
    with ShownTask(name, len(points), "points") as task, Workbench(config, setup) as bench:
        for point in points:
            if point not in measured:
                data = experiment.measure(bench, point)
                measured.append(MeasuredPoint(point=point, data=dict(data)))
            task.advance()
    record = ExperimentRecord.of_run(
        command,
        experiment=name,
        started=measured.started,
        machine=machine,
        commit=checkout_commit(),
        setup=setup,
        points=tuple(measured[point] for point in points),
    )
    text = section(record, experiment, question, heading="#", figure=f"{name}.svg")
    record.write(folder / f"{name}.json")
    write_figure(experiment, record, folder / f"{name}.svg")
    (folder / f"{name}.png").write_bytes(
        png(lambda *axes: experiment.draw(record, *axes), experiment.plot_rows)
    )
    replace_file(folder / f"{name}.md", text)
    return record


def weights_fingerprint(model: ModelSettings) -> str | None:
    """A name for the weights of a folder that no others have; None for a name on the Hub.

    It is a `fingerprint` of the weight files and of the configuration.
    """
    from lopa_ray.execution.model_files import checkpoint_folder, fingerprint

    if not (model.path == "demo" or Path(model.path).is_dir()):
        return None
    folder = checkpoint_folder(model)
    return fingerprint(sorted([*folder.glob("*.safetensors"), *folder.glob("config.json")]))


def text_fingerprint(problems: Iterable[Problem]) -> str:
    """A name for problems that no others have: a hash of their questions and answers."""
    texts = [(problem.question, problem.answer) for problem in problems]
    return hashlib.sha256(repr(texts).encode()).hexdigest()[:16]
