"""The command of a job: `python -m cluster.jobs`."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.cli import options as o
from cluster.jobs.storage import is_absolute
from lopa_ray.errors import SettingsError

if TYPE_CHECKING:
    from cluster.jobs.output import Result
    from lopa_ray.config.config import Config

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

CHUNK_SLOTS = 16
"""Largest chunk: this many fills of a group's slots."""

CHUNKS_PER_GROUP = 16
"""Smaller inputs are cut finer, so that all groups have something to do to the end."""


@app.command()
def decode(
    source: Annotated[
        str, typer.Option("--input", metavar="FILE|URL", help="Prompts: JSONL, or Parquet by its name.")
    ],
    output: Annotated[
        str, typer.Option(metavar="FILE|URL", help="Results as JSONL; an absolute path or a URL.")
    ],
    config: o.ConfigOption = "demo",
    groups: Annotated[int, typer.Option(min=1, help="Decode groups, each with its workers.")] = 1,
    model: o.ModelOption = None,
    lora: o.LoraOption = None,
    workers: o.WorkersOption = None,
    tensor_parallel_size: o.ShardsOption = None,
    assignments: o.SetOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Leave the chat template out.")] = False,
) -> None:
    """Decode a file of prompts on many groups, with one result per prompt in input order.

    A job that was killed goes on where it was when it is submitted again. Lines that cannot be decoded
    are reported and have their error in the output. Exit status: 0 all lines are decoded, 1 some are not,
    2 wrong usage or settings.
    """
    with o.exits():
        if not is_absolute(output):
            raise SettingsError(
                f"--output: got {output!r}; allowed: an absolute path or a URL, since a job's own folder goes away"
            )
        changes = o.collect_changes(
            assignments,
            {
                "model.path": model,
                "model.lora": lora,
                "group.num_workers": workers,
                "group.tensor_parallel_size": tensor_parallel_size,
            },
        )
        result = run(source, output, o.load_config(config, changes), groups, raw=raw)
        if result is None:
            raise o.fail(f"{output} is not complete; submit the job again to try the rest", o.FAILED)
        if result.failed:
            raise o.fail(f"{result.failed} of {result.lines} lines failed; see {output}", o.FAILED)


def run(source: str, output: str, config: Config, groups: int, *, raw: bool) -> Result | None:
    """Decode `source` into `output`; None if chunks had to be given up. Raises LopaError."""
    from actors.ray_connection import Connection
    from cluster.jobs.output import Output, Recipe
    from cluster.jobs.progress import Progress
    from cluster.jobs.source import Source
    from cluster.jobs.work_queue import WorkQueue

    prompts = Source(source)
    survey = prompts.survey()
    # These and the group's settings change how fast it is, never what comes out.
    speed = {"max_num_seqs", "prefix_cache_positions"}
    values = config.as_dict()
    model = {key: value for key, value in values["model"].items() if key not in speed}
    recipe = Recipe(survey.digest, survey.lines, raw, model, values["decode"])
    size = min(CHUNK_SLOTS * config.model.max_num_seqs, math.ceil(survey.lines / (CHUNKS_PER_GROUP * groups)))
    results = Output(output)
    finished = results.begin(recipe, size)
    if finished is not None:
        typer.echo(f"{output} is complete already: {finished.lines} lines")
        return finished
    progress = Progress(survey.lines, results.chunk_size, results.done)
    missing = (chunk for chunk in prompts.chunks(results.chunk_size) if chunk.index not in results.done)
    # All groups together begin with so many; the bounds of `scaling` are those of one.
    together = {"num_workers": groups * config.group.num_workers, "scaling": None}
    everything = config.replace(group=config.group.replace(**together))
    with ExitStack() as stack:
        stack.callback(Connection(everything).close)
        queue = WorkQueue(config, groups, raw=raw, on_loss=progress.say, on_wake=progress.report)
        stack.callback(queue.close)
        for chunk, decoded in queue.run(missing):
            results.keep(chunk.index, decoded.rows)
            progress.add(decoded)
        for chunk in queue.given_up:
            progress.say(f"given up: lines {chunk.lines[0].line} to {chunk.lines[-1].line}")
    if queue.given_up:
        return None
    if prompts.survey() != survey:
        raise SettingsError(f"--input: {source} changed while the job ran; remove what lies at {output}.*")
    joined = results.finish(survey.lines)
    progress.say(f"{output} is complete: {joined.lines} lines in {time.monotonic() - progress.began:.0f} s")
    return joined


if __name__ == "__main__":
    app()
