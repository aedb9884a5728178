"""What can be typed after `lopa eval`, and `lopa reproduce`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from cluster.command_line import options
from cluster.command_line.command_app import CommandApp, CommandGroup
from cluster.command_line.exit_status import FAILED, exit_on_error
from cluster.command_line.progress import ShownTask
from lopa_lab.cli.declared_options import declare_options
from lopa_lab.cli.eval_decisions_command import decisions
from lopa_lab.hub_connection import use_cache_without_hub
from lopa_ray.config.shorthands import SHORTHANDS
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
    help="Evaluate: lm-evaluation-harness's commands, the paper's benchmarks (extra eval), and decisions.",
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
        with exit_on_error():
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


def _run_options(
    model: options.ModelOption = None,
    lora: options.LoraOption = None,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    seed: options.SeedOption = None,
    assignments: options.SetOption = None,
    workers: options.WorkersOption = None,
    tensor_parallel_size: options.TensorParallelSizeOption = None,
    local: options.LocalOption = False,
    shots_data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Solved examples to draw GSM8K's shots from.")
    ] = None,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat", help="As a chat, shots as turns; default: where the model has a template."
        ),
    ] = None,
    add_bos: Annotated[
        bool,
        typer.Option("--add-bos", help="The checkpoint's BOS before plain text, and EOS behind a suffix."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Decode the first problems only, so many.")] = None,
    concurrency: Annotated[
        int, typer.Option(min=1, help="Problems in flight together. Times are measured with 1 alone.")
    ] = 1,
    allow_code_execution: Annotated[
        bool,
        typer.Option(
            "--allow-code-execution", help="Execute the programs that the model wrote, in the sandbox."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Folder of records and reports; a run there continues."
        ),
    ] = None,
) -> None:
    """The options that all commands have that run benchmarks of the paper."""


def _runs_benchmarks(run: Callable[..., bool]) -> Callable[..., None]:
    """The command of a function that runs benchmarks of the paper, and returns whether all is well.

    The command has the options of `_run_options` too. The function gets `output`, `overrides` of the configuration,
    from options that are shorthands and from `--set`, and `run_options`, the others.
    """

    @wraps(run)
    def command(*, assignments: list[str] | None, output: Path | None, **values: Any) -> None:
        with exit_on_error():
            _require_packages()
            shorthands = {name: values.pop(name) for name in SHORTHANDS if name in values}
            overrides = options.parse_overrides(assignments, **shorthands)
            if "max_num_seqs" in overrides.get("model", {}):
                raise SettingsError(
                    "model.max_num_seqs: --concurrency sets how many problems are in flight; use that"
                )
            names = [name for name in signature(_run_options).parameters if name in values]
            run_options = {name: values.pop(name) for name in names}
            all_well = run(output=output, overrides=overrides, run_options=run_options, **values)
        if not all_well:
            raise typer.Exit(FAILED)

    declare_options(command, run, _run_options, but=("overrides", "run_options"))
    return command


@app.command()
@_runs_benchmarks
def paper(
    task: Annotated[
        str,
        typer.Argument(
            help="gsm8k, math, humaneval, humaneval_plus, humaneval_infilling, mbpp, mbpp_plus or word_problems."
        ),
    ],
    output: Path | None,
    overrides: options.ConfigOverrides,
    run_options: dict[str, Any],
    config: options.ConfigOption = "demo",
    decoder: options.DecoderOption = None,
    num_branches: options.NumBranchesOption = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Problems (JSON Lines, .gz or not); else from the Hub."),
    ] = None,
) -> bool:
    """Run a benchmark of the paper, with its shots, and report scores and speeds with intervals.

    One problem at a time, as the paper measures it. A killed run continues when you run the command again.
    """
    with ShownTask("Starting"):
        from lopa_lab.paper.commands import run_paper
        from lopa_lab.paper.runs.run import RunOptions

    run_paper(
        task,
        options.load_config(config, overrides),
        output or Path("eval-results") / task,
        RunOptions(config_name=config, data=data, **run_options),
    )
    return True


@_runs_benchmarks
def reproduce(
    table: Annotated[str, typer.Argument(help="table1, table2, table3, table4, table7, fig4 or fig5.")],
    output: Path | None,
    overrides: options.ConfigOverrides,
    run_options: dict[str, Any],
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
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK=FILE",
            help="File with the problems of a benchmark, in place of the Hub; repeat it for more.",
        ),
    ] = None,
) -> bool:
    """Run what makes a table or figure of the paper, and print it beside the published numbers.

    The presets' models need GPUs and the Hub. On a CPU, with the model in the package: --config demo --local
    --stand-in word_problems --limit 4. The reason stands beside every cell that was not run. A command that was killed
    goes on when it is given again.
    """
    with ShownTask("Starting"):
        from lopa_lab.paper import commands
        from lopa_lab.paper.runs.run import RunOptions
        from lopa_lab.paper.tables.run_cells import Selection

    selection = Selection(
        rows=tuple(rows or ()),
        tasks=tuple(tasks or ()),
        stand_in=stand_in,
        base=None if config is None else options.load_config(config, {}),
        overrides=overrides,
        data=_data_files(data or []),
    )
    return commands.reproduce(
        table, selection, output or Path("reproduction") / table, RunOptions("", **run_options)
    )


def _data_files(texts: list[str]) -> dict[str, Path]:
    files = {}
    for text in texts:
        task, equals, file = text.partition("=")
        if not equals or not Path(file).is_file():
            raise SettingsError(f"--data: got {text!r}; allowed: TASK=FILE, with an existing file")
        files[task] = Path(file)
    return files
