"""The commands of `lopa experiment`: one for each experiment, `fit-drafts`, and `report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cluster.command_line import options
from cluster.command_line.command_app import CommandApp
from cluster.command_line.engine_options import EngineOptions, engine_options
from cluster.command_line.progress import ShownTask
from lopa_lab.experiments.run.setup import FIT_SEED
from lopa_lab.experiments.table import EXPERIMENTS

app = CommandApp(
    help="Open questions about LoPA: each command measures one, and writes data, plot and finding. Give an interrupted "
    "command again, and it goes on.",
    no_args_is_help=True,
)

ExperimentOptions = Annotated[
    EngineOptions, engine_options("model", "device", "model.*", "set", without=("lora",))
]


def _command(name: str) -> Callable[..., None]:
    def run(
        *,
        config: options.ConfigOption = "demo",
        engine: ExperimentOptions,
        problems: Annotated[
            int | None,
            typer.Option(min=1, help="Held-out problems; without it, the experiment's own number."),
        ] = None,
        seed: Annotated[int, typer.Option(min=0, help="Of problems and draws.")] = 2,
        output: Annotated[
            Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the experiment's files.")
        ] = Path("experiments"),
    ) -> None:
        with ShownTask("Starting"):
            from lopa_lab.experiments.run.runner import run_experiment
            from lopa_lab.experiments.table import load_experiment
            from lopa_lab.records.record import arguments_of_process

            experiment = load_experiment(name)
        record = run_experiment(
            name,
            experiment,
            EXPERIMENTS[name],
            engine.load(config),
            problems=problems or experiment.problems,
            seed=seed,
            folder=output,
            command=arguments_of_process(),
        )
        typer.echo(experiment.finding(record).text)
        typer.echo(f"\nFiles: {output / name}.json, .svg, .png, .md")

    return run


for _name, _question in EXPERIMENTS.items():
    app.command(_name, help=_question)(_command(_name))


@app.command("fit-drafts")
def fit_drafts(
    *,
    config: options.ConfigOption = "demo",
    engine: ExperimentOptions,
    problems: Annotated[int, typer.Option(min=1, help="Word problems to decode.")] = 400,
    seed: Annotated[
        int, typer.Option(min=0, help="Of the problems; `lopa experiment verified` needs others.")
    ] = FIT_SEED,
    rounds: Annotated[
        int,
        typer.Option(min=1, help="How often to decode and fit; each round has the drafts of the one before."),
    ] = 1,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File of the parameters.")
    ] = Path("fill_models.json"),
) -> None:
    """Fit the model that proposes the drafts of verified lookahead.

    Decodes problems with verified lookahead, and fits a model per ranking to the states that it reaches. Replace
    lopa_ray/decoding/verified/fill_models.json with the file to use it.
    """
    from cluster.batch.open_engine import open_engine
    from lopa_lab.experiments.run.fit_fill_model import fill_models_text, fit_fill_models
    from lopa_lab.records.record import check_writable, replace_file
    from lopa_lab.word_problems import held_out_problems

    check_writable(output)
    given = engine.load(config)
    with open_engine(given, local=True) as opened:
        decoded = held_out_problems(seed, problems)
        parameters = fit_fill_models(opened, given, decoded, rounds, typer.echo)
    replace_file(output, fill_models_text(parameters))
    typer.echo(f"File: {output}")


@app.command()
def report(
    records: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with records (JSON) of experiments.")
    ] = Path("benchmarks/experiments"),
    page: Annotated[
        Path, typer.Option("--page", metavar="FILE", help="Page to write; plots go to figures/ next to it.")
    ] = Path("docs/findings.md"),
) -> None:
    """Write the page of findings, with its plots, from records."""
    from lopa_lab.experiments.run.findings_page import write_page
    from lopa_lab.experiments.table import load_experiment

    write_page(EXPERIMENTS, load_experiment, records, page)
    typer.echo(f"Page: {page}")
