"""`run_job`: decodes a file of prompts on many groups, and continues a job that was killed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import typer

from actors.connection.ray_connection import RayConnection
from cluster.batch.source import Chunk, InputSummary, Source
from cluster.jobs.output_lock import output_lock
from cluster.jobs.progress import JobProgress
from cluster.jobs.resumable_output import JobOutput, JobResult, JobSpec
from cluster.jobs.work_queue import WorkQueue
from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import resolve_config
from lopa_ray.errors import SettingsError
from lopa_ray.execution.model_files import local_fingerprint

MAX_CHUNK_MULTIPLE = 16  # largest chunk, in multiples of `model.max_num_seqs`
MIN_CHUNKS_PER_GROUP = 16  # smaller inputs are cut finer, so that all groups have something to do to the end

SPEED_SETTINGS = {
    "model": {"max_num_seqs"},
    "group": {
        "num_workers",
        "scaling",
        "forward_costs",
        "num_accelerators",
        "resources",
        "wait_for_nodes",
        "overlap_schedule",
        "transfer",
        "step_timeout_s",
        "start_timeout_s",
        "max_requests_per_client",
    },
}
"""Section → its settings that change where a job runs, how fast it is and what it survives, never its answers. Tokens
that follow the load (`branch_budget` load, `prefix_cache` approximate) differ from run to run whatever the settings."""


def run_job(source: str, output: str, config: Config, groups: int, *, raw: bool) -> JobResult | None:
    """Decode `source` into `output`; None if chunks had to be abandoned. Raises LopaError."""

    def wait(seconds: float) -> None:
        typer.echo(f"{output}: a job was here before; looking in {seconds:g} s whether it still is")
        time.sleep(seconds)

    with output_lock(output, wait) as check_lock:
        return _run_locked(source, output, resolve_config(config), groups, check_lock, raw=raw)


def _run_locked(
    source: str, output: str, config: Config, groups: int, check_lock: Callable[[], None], *, raw: bool
) -> JobResult | None:
    prompts = Source(source)
    summary = prompts.summarize()
    results = JobOutput(output, summary.numbers)
    most = math.ceil(len(summary.numbers) / (MIN_CHUNKS_PER_GROUP * groups))
    chunk_size = min(MAX_CHUNK_MULTIPLE * config.model.max_num_seqs, most)
    finished = results.start_or_resume(job_spec(config, summary, raw=raw), chunk_size)
    if finished is not None:
        typer.echo(f"{output} is complete already: {finished.lines} lines")
        return finished
    for name in results.damaged:
        typer.echo(f"{name} is damaged; what it lacks is decoded again")
    done = results.chunk_files
    progress = JobProgress(len(summary.numbers), results.chunk_size, done)
    missing = (chunk for chunk in prompts.chunks(results.chunk_size) if chunk.index not in done)
    if not _decode_chunks(missing, config, groups, results, progress, check_lock, raw=raw):
        return None
    if prompts.summarize() != summary:
        raise SettingsError(f"--input: {source} changed while the job ran; remove the files {output}.*")
    check_lock()
    merged = results.merge_parts()
    progress.report_end(output)
    return merged


def job_spec(config: Config, summary: InputSummary, *, raw: bool) -> JobSpec:
    """The key of a job's results: its input, all settings but `SPEED_SETTINGS`, and the files of a local checkpoint,
    which others may replace. `config` has pinned names. Raises CheckpointError."""
    sections = config.as_dict()
    for section, settings in SPEED_SETTINGS.items():
        sections[section] = {key: value for key, value in sections[section].items() if key not in settings}
    given = {"sha256": summary.sha256, "format": summary.format, "lines": len(summary.numbers)}
    return {"input": given, "raw": raw, **sections, "checkpoint": local_fingerprint(config.model)}


def _decode_chunks(
    chunks: Iterator[Chunk],
    config: Config,
    groups: int,
    results: JobOutput,
    progress: JobProgress,
    check_lock: Callable[[], None],
    *,
    raw: bool,
) -> bool:
    # The resources of all groups at their start. `scaling` is removed, since its bounds apply to one group.
    total = config.group.replace(num_workers=groups * config.group.num_workers, scaling=None)
    with ExitStack() as stack:
        stack.callback(RayConnection(config.replace(group=total)).close)
        queue = WorkQueue(config, groups, raw=raw, on_group_lost=progress.log, on_poll=progress.report)
        stack.callback(queue.close)
        for chunk, result in queue.run(chunks):
            check_lock()
            results.write_chunk(chunk.index, result.rows)
            progress.add(result)
        for chunk in queue.abandoned:
            progress.log(f"given up: lines {chunk.lines[0].line} to {chunk.lines[-1].line}")
    return not queue.abandoned
