"""The command of a job: `python -m cluster.jobs`."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.command_line import options
from cluster.command_line.exit_status import FAILED, error_exit, exit_on_error
from cluster.jobs.storage import is_absolute
from lopa_ray.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster.jobs.progress import JobProgress
    from cluster.jobs.resumable_output import JobOutput, JobResult, JobSpec
    from cluster.jobs.source import Chunk, InputSummary
    from lopa_ray.engine.config import Config

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

MAX_CHUNK_MULTIPLE = 16
"""Largest chunk, in multiples of `model.max_num_seqs`."""

MIN_CHUNKS_PER_GROUP = 16
"""Smaller inputs are cut finer, so that all groups have something to do to the end."""

SPEED_SETTINGS = {"max_num_seqs", "prefix_cache_positions"}
"""Settings of the model which, like those of the group, change how fast a job is, never its results."""


@app.command()
def decode(
    source: Annotated[
        str, typer.Option("--input", metavar="FILE|URL", help="Prompts: JSONL, or Parquet by its name.")
    ],
    output: Annotated[
        str, typer.Option(metavar="FILE|URL", help="Results as JSONL; an absolute path or a URL.")
    ],
    config: options.ConfigOption = "demo",
    groups: Annotated[int, typer.Option(min=1, help="Decode groups, each with its workers.")] = 1,
    model: options.ModelOption = None,
    lora: options.LoraOption = None,
    workers: options.WorkersOption = None,
    tensor_parallel_size: options.TensorParallelSizeOption = None,
    assignments: options.SetOption = None,
    raw: options.RawOption = False,
) -> None:
    """Decode a file of prompts on many groups, with one result per prompt in input order.

    A killed job continues when it is submitted again. Lines that cannot be decoded
    are reported and have their error in the output. Exit status: 0 all lines are decoded, 1 some are not,
    2 wrong usage or settings.
    """
    with exit_on_error():
        if not is_absolute(output):
            raise SettingsError(
                f"--output: got {output!r}; allowed: an absolute path or a URL, since a job's own folder is removed"
            )
        overrides = options.parse_overrides(
            assignments, model=model, lora=lora, workers=workers, tensor_parallel_size=tensor_parallel_size
        )
        result = run(source, output, options.load_config(config, overrides), groups, raw=raw)
        if result is None:
            raise error_exit(f"{output} is not complete; submit the job again to try the rest", FAILED)
        if result.failed:
            raise error_exit(f"{result.failed} of {result.lines} lines failed; see {output}", FAILED)


def run(source: str, output: str, config: Config, groups: int, *, raw: bool) -> JobResult | None:
    """Decode `source` into `output`; None if chunks had to be abandoned. Raises LopaError."""
    from cluster.jobs.progress import JobProgress
    from cluster.jobs.resumable_output import JobOutput
    from cluster.jobs.source import Source
    from lopa_ray.engine.open_model import resolve_config

    config = resolve_config(config)
    prompts = Source(source)
    summary = prompts.summarize()
    results = JobOutput(output)
    most = math.ceil(summary.lines / (MIN_CHUNKS_PER_GROUP * groups))
    chunk_size = min(MAX_CHUNK_MULTIPLE * config.model.max_num_seqs, most)
    finished = results.start_or_resume(_job_spec(config, summary, raw=raw), chunk_size)
    if finished is not None:
        typer.echo(f"{output} is complete already: {finished.lines} lines")
        return finished
    progress = JobProgress(summary.lines, results.chunk_size, results.chunk_files)
    missing = (
        chunk for chunk in prompts.chunks(results.chunk_size) if chunk.index not in results.chunk_files
    )
    if not _decode_chunks(missing, config, groups, results, progress, raw=raw):
        return None
    if prompts.summarize() != summary:
        raise SettingsError(f"--input: {source} changed while the job ran; remove the files {output}.*")
    merged = results.merge_parts(summary.lines)
    progress.log(f"{output} is complete: {merged.lines} lines in {time.monotonic() - progress.started:.0f} s")
    return merged


def _job_spec(config: Config, summary: InputSummary, *, raw: bool) -> JobSpec:
    from cluster.jobs.resumable_output import JobSpec

    values = config.as_dict()
    model = {name: value for name, value in values["model"].items() if name not in SPEED_SETTINGS}
    return JobSpec(summary.sha256, summary.lines, raw, model, values["decode"])


def _decode_chunks(
    chunks: Iterator[Chunk],
    config: Config,
    groups: int,
    results: JobOutput,
    progress: JobProgress,
    *,
    raw: bool,
) -> bool:
    """Decode and write chunks on a number of groups; false if chunks had to be abandoned."""
    from actors.ray_connection import RayConnection
    from cluster.jobs.work_queue import WorkQueue

    # The resources of all groups at their start. `scaling` is removed, since its bounds apply to one group.
    total = config.group.replace(num_workers=groups * config.group.num_workers, scaling=None)
    with ExitStack() as stack:
        stack.callback(RayConnection(config.replace(group=total)).close)
        queue = WorkQueue(config, groups, raw=raw, on_group_lost=progress.log, on_poll=progress.report)
        stack.callback(queue.close)
        for chunk, result in queue.run(chunks):
            results.write_chunk(chunk.index, result.rows)
            progress.add(result)
        for chunk in queue.abandoned:
            progress.log(f"given up: lines {chunk.lines[0].line} to {chunk.lines[-1].line}")
    return not queue.abandoned


if __name__ == "__main__":
    app()
