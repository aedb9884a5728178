"""`lopa eval decisions`: its arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.command_line import options
from cluster.command_line.engine_options import EngineOptions, engine_options
from lopa_lab.cli.bench_options import WORDS, several


def decisions(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Labelled questions, JSON Lines; see docs/decisions.md.")
    ],
    prefix: Annotated[Any, several(WORDS, "input, joint; default: the configuration's.")] = None,
    rotations: Annotated[
        int | None,
        typer.Option(min=1, help="Orders of choices; above 1 the effect of the order is reported."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write the settings, for the checkpoint's decisions.json."
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the reliability plot (SVG; extra eval).")
    ] = None,
    config: options.ConfigOption = "demo",
    engine: Annotated[
        EngineOptions,
        engine_options("model.*", "set", "group.*", "local", without=("tensor_parallel_size",)),
    ],
) -> None:
    """Ask labelled questions: accuracy, Brier score, calibration error, and temperatures that calibrate.

    With several values of --prefix the value with the best accuracy is written.
    """
    from cluster.batch.open_engine import open_engine
    from lopa_lab.decisions.labels import read_labelled
    from lopa_lab.decisions.report import best_report, evaluate, reliability_plot, write_settings
    from lopa_lab.records.figure import require_matplotlib
    from lopa_ray.config.decision_settings import DecisionSettings

    if plot is not None:
        require_matplotlib()
    loaded = engine.load(config)
    given = [DecisionSettings(prefix=name) for name in prefix or ()]
    labelled = read_labelled(file)
    with open_engine(loaded, local=engine["local"]) as opened:
        current = opened.config.decisions
        attention = opened.config.decode.prompt_attention
        changes = [settings.prefix for settings in given] or [current.prefix_for(attention)]
        reports = [
            evaluate(
                opened,
                labelled,
                current.replace(prefix=name, rotations=rotations or current.rotations),
            )
            for name in changes
        ]
    for report in reports:
        typer.echo(report.as_text() + "\n")
    best = best_report(reports)
    if output is not None:
        write_settings(best, output)
        typer.echo(f"Settings: {output}")
    if plot is not None:
        plot.write_text(reliability_plot(best), encoding="utf-8")
        typer.echo(f"Plot: {plot}")
