"""`lopa eval`: lm-evaluation-harness's own command line, with the model `lopa_ray`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from cluster.command_line.progress import ShownTask
from lopa_lab.evaluation.totals import decoding_lines
from lopa_ray.errors import SettingsError

TASKS = Path(__file__).parent / "tasks"
"""Tasks of this project, in the harness's form."""


def _is_about_usage(error: ValueError) -> bool:
    """Whether the harness raised it where it reads its own arguments, which it reports by tracebacks."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    name = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return name in ("lm_eval.config.evaluate_config", "lm_eval.evaluator")


def run_harness(arguments: Sequence[str]) -> None:
    """Hand the command line on to the harness; `run` takes `lopa_ray` where no --model is named, and tasks of this
    project are among the tasks that it knows. Below the harness's table of scores is one of what decoding took.

    Raises SettingsError if data cannot be loaded from the Hub, and what the harness raises, SystemExit for wrong usage
    among it.
    """
    with ShownTask("Loading lm-evaluation-harness"):
        from lm_eval._cli import HarnessCLI
        from lm_eval.utils import setup_logging

        import lopa_lab.evaluation  # noqa: F401  # registers the model
        from lopa_lab.evaluation.harness_model import NAME, opened_models

    given = list(arguments)
    named = {argument.partition("=")[0] for argument in given}
    if given[:1] == ["run"] and not {"--model", "-M", "--config", "-C", "--help", "-h"} & named:
        given += ["--model", NAME]
    if "--include_path" not in named and not {"--config", "-C", "--help", "-h"} & named:
        given += ["--include_path", str(TASKS)]
    setup_logging()
    sys.argv = ["lopa eval", *given]
    cli = HarnessCLI()
    with opened_models() as models:
        try:
            cli.execute(cli.parse_args())
        except ConnectionError as error:
            raise SettingsError(f"data cannot be loaded from the Hub: {error}") from error
        except ValueError as error:
            if not _is_about_usage(error):
                raise
            advice = "; `lopa eval ls tasks` lists the tasks" if "task" in str(error).lower() else ""
            raise SettingsError(str(error).rstrip(".") + advice) from error
        for model in models:
            print("\n".join(decoding_lines(model.totals)))
