"""The command of a job: `lopa job`, and `python -m cluster.jobs`."""

from __future__ import annotations

from typing import Annotated

import typer

from cluster.command_line import options
from cluster.command_line.command_app import CommandApp
from cluster.command_line.engine_options import EngineOptions, engine_options
from cluster.command_line.exit_status import FAILED, error_exit, run_app
from lopa_ray.errors import SettingsError

app = CommandApp(add_completion=False)


@app.command()
def decode(
    *,
    source: Annotated[
        str, typer.Option("--input", metavar="FILE|URL", help="Prompts: JSONL, or Parquet by its name.")
    ],
    output: Annotated[
        str, typer.Option(metavar="FILE|URL", help="Results as JSONL; an absolute path or a URL.")
    ],
    config: options.OptionalConfigOption = None,
    groups: Annotated[int, typer.Option(min=1, help="Decode groups, each with its workers.")] = 1,
    engine: Annotated[
        EngineOptions, engine_options("model.*", "decode.*", "group.*", "set", without=("suffix",))
    ],
    raw: options.RawOption = False,
) -> None:
    """Decode a file of prompts on many groups, with one result per prompt in input order.

    A killed job continues when it is submitted again. Lines that cannot be decoded
    are reported and have their error in the output. Exit status: 0 all lines are decoded, 1 some are not,
    2 wrong usage or settings.
    """
    from cluster.batch.storage import is_absolute

    if not is_absolute(output):
        raise SettingsError(
            f"--output: got {output!r}; allowed: an absolute path or a URL, since a job's own folder is removed"
        )
    from cluster.jobs.job import run_job

    result = run_job(source, output, engine.load(config), groups, raw=raw)
    if result is None:
        raise error_exit(f"{output} is not complete; submit the job again to try the rest", FAILED)
    if result.failed:
        raise error_exit(f"{result.failed} of {result.lines} lines failed; see {output}", FAILED)


if __name__ == "__main__":
    run_app(app)
