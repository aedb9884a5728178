"""The commands below `lopa eval`, and `lopa reproduce`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.command_line import options
from cluster.command_line.command_app import CommandApp, CommandGroup
from cluster.command_line.engine_options import EngineOptions, engine_options
from cluster.command_line.exit_status import FAILED
from cluster.command_line.progress import ShownTask
from lopa_lab.cli.eval_decisions_command import decisions
from lopa_lab.hub_connection import use_cache_without_hub
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from lopa_ray.extras import install_advice


class _EvalGroup(CommandGroup):
    """`run` where no command is named, as in lm-evaluation-harness."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = CommandApp(
    cls=_EvalGroup,
    help="Evaluate: lm-evaluation-harness's commands (extra eval), and decisions.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
)

_HARNESS_COMMANDS = {
    "run": "Run tasks of lm-evaluation-harness, with all of its own options.\n\n"
    "lopa eval run --model_args config=demo,num_branches=8 --tasks gsm8k --limit 20",
    "ls": "List the harness's tasks: lopa eval ls tasks.",
    "validate": "Check task files of the harness.",
}
"""Commands of the harness → their help; their options are the harness's."""


def _require_packages() -> None:
    if importlib.util.find_spec("lm_eval") is None:
        raise SettingsError(f"evaluation needs lm-evaluation-harness; {install_advice('eval')}")


def _harness_command(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        _require_packages()
        if name == "run" and not {"--help", "-h"} & {*context.args}:
            use_cache_without_hub()
        from lopa_lab.evaluation.harness_cli import run_harness

        run_harness([name, *context.args])

    return run


for _name, _help in _HARNESS_COMMANDS.items():
    _as_they_are = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(_name, help=_help, add_help_option=False, context_settings=_as_they_are)(
        _harness_command(_name)
    )


app.command()(decisions)


def reproduce(
    *,
    table: Annotated[str, typer.Argument(help="table1, table2, table3, table4, table7, fig4 or fig5.")],
    rows: Annotated[
        list[str] | None,
        typer.Option(
            "--row",
            metavar="TEXT",
            help="Run the row of this name, or those whose name has this text; repeat it for more.",
        ),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="TASK", help="Run the cells of this benchmark; repeat it for more."),
    ] = None,
    stand_in: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Run this benchmark in every cell, in place of the cell's own."),
    ] = None,
    config: Annotated[
        str | None,
        options.config_option("Take model and group from here, and decode settings from the presets."),
    ] = None,
    engine: Annotated[
        EngineOptions, engine_options("model.*", "max_new_tokens", "seed", "set", "group.*", "local")
    ],
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many problems of each task of the harness.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Problems in flight together. Times are measured with 1 alone.")
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder of results; cells with a result there do not run."
        ),
    ] = None,
) -> None:
    """Run what makes a table or figure of the paper, and print it next to the published numbers.

    The presets' models need GPUs and the Hub. On a CPU, with the model in the package: --config demo --local
    --stand-in word_problems --limit 4. A command that was killed goes on when it is given again.
    """
    _require_packages()
    overrides = engine.overrides()
    if "max_num_seqs" in overrides.get("model", {}):
        raise SettingsError(
            "model.max_num_seqs: --concurrency sets how many problems are in flight; use that"
        )
    if stand_in != "word_problems":
        use_cache_without_hub()
    with ShownTask("Starting"):
        from lopa_lab.paper import reproduce as paper

    selection = paper.Selection(
        rows=rows or (),
        tasks=tasks or (),
        stand_in=stand_in,
        base=None if config is None else Config.load(config),
        overrides=overrides,
        limit=limit,
        concurrency=concurrency,
        local=engine["local"],
    )
    all_well = paper.reproduce(table, selection, output or Path("reproduction") / table)
    if not all_well:
        raise typer.Exit(FAILED)
