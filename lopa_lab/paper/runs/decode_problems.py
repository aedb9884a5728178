"""Decoding a task's problems, one after the other as the paper measures it, or many together."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from lopa_lab.paper.runs.problem_record import ProblemRecord
from lopa_lab.paper.tasks.task import BenchmarkProblem
from lopa_lab.requests import answered, encode_prompt, fitting_prompt
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.result import TraceStep
from lopa_ray.engine.base import Engine
from lopa_ray.errors import SettingsError
from lopa_ray.text.tokenizer import require_tokenizer


def decode_problems(
    engine: Engine,
    problems: Sequence[BenchmarkProblem],
    settings: GenerationSettings,
    *,
    concurrency: int = 1,
    add_bos: bool = False,
) -> Iterator[ProblemRecord]:
    """A record per problem, as they end.

    With a `concurrency` of 1 each problem is alone in flight, and its record has the times that it took; the first one
    is decoded once before, so that no record has the time of a first use of kernels and caches. Otherwise up
    to `model.max_num_seqs` of the engine's configuration are in flight together, and records have no times: a
    request's own would contain that of others. Raises what ends a request, SettingsError for prompts that leave no
    room for an answer.
    """
    if concurrency > 1:
        yield from _decode(engine, problems, settings, add_bos, timed=False)
        return
    for problem in problems[:1]:
        list(_decode(engine, [problem], settings, add_bos, timed=False))
    for problem in problems:
        yield from _decode(engine, [problem], settings, add_bos, timed=True)


def _decode(
    engine: Engine,
    problems: Sequence[BenchmarkProblem],
    settings: GenerationSettings,
    add_bos: bool,
    *,
    timed: bool,
) -> Iterator[ProblemRecord]:
    prompts = [encode_problem(engine, problem, add_bos=add_bos) for problem in problems]
    suffixes = [suffix_of(engine, problem, add_eos=add_bos) for problem in problems]
    lengths = [engine.suffix_length(suffix, parse_special=True) for suffix in suffixes]
    fitting = [
        fitting_prompt(engine, ids, settings.max_new_tokens + length)
        for ids, length in zip(prompts, lengths, strict=True)
    ]
    fills: list[list[int]] = [[] for _ in problems]
    step_ends: list[float] = []

    def on_step(index: int, step: TraceStep) -> None:
        step_ends.append(time.perf_counter())
        fills[index].append(len(step.decided))

    sessions = [
        engine.create_session(ids, settings.replace(suffix=suffix) if suffix else settings, raw=True)
        for ids, suffix in zip(fitting, suffixes, strict=True)
    ]
    began = time.perf_counter()
    for index, result in answered(engine.run(sessions, on_step=on_step)):
        now = time.perf_counter()
        yield ProblemRecord(
            problem_id=problems[index].problem_id,
            text=result.text or "",
            finish_reason=result.finish_reason,
            prompt_tokens=result.prompt_tokens,
            truncated_prompt=len(fitting[index]) < len(prompts[index]),
            tokens=result.tokens,
            canvas_tokens=sum(fills[index]),
            steps=result.steps,
            forwards=result.forwards,
            seconds=now - began if timed else None,
            first_step_seconds=(step_ends[0] if step_ends else now) - began if timed else None,
            fills=tuple(fills[index]),
        )


def encode_problem(engine: Engine, problem: BenchmarkProblem, *, add_bos: bool = False) -> list[int]:
    """A problem's prompt as token ids: a chat by the checkpoint's template, text as it is.

    `add_bos` puts the checkpoint's BOS before text. Raises SettingsError if it has none.
    """
    ids = encode_prompt(engine, problem.prompt, problem.prefix)
    if not (add_bos and isinstance(problem.prompt, str)):
        return ids
    bos = require_tokenizer(engine.tokenizer).bos_token_id
    if bos is None:
        raise SettingsError("--add-bos: the checkpoint's tokenizer has no BOS token; leave it out")
    return ids if ids[:1] == [bos] else [bos, *ids]


def suffix_of(engine: Engine, problem: BenchmarkProblem, *, add_eos: bool = False) -> str:
    """The text behind a problem's answer, empty if there is none. `add_eos` puts the checkpoint's EOS behind it, as the
    evaluation code of DreamOn does."""
    if not (add_eos and problem.suffix):
        return problem.suffix
    return problem.suffix + require_tokenizer(engine.tokenizer).token_text(engine.vocabulary.eos_token_id)
