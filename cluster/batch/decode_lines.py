"""Decodes the lines of a file, in flight together, with one result per line in input order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from cluster.batch.decision_work import DECISION_URLS, DecisionWork
from cluster.batch.lines import (
    CompletedLine,
    DecisionLine,
    FailedLine,
    LineResult,
    OpenAILine,
    ParsedLine,
    PromptLine,
    RequestLine,
    identity,
    response_row,
)
from cluster.batch.openai_line import OpenAIWork
from cluster.batch.result_format import StepRecorder, result_as_dict
from cluster.openai.errors import ApiError, api_error
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.base import Engine
from lopa_ray.errors import LopaError, WorkerLostError
from lopa_ray.protocol.events import RequestStep


class PromptWork:
    """The request in one line of this project's format."""

    def __init__(self, line: PromptLine, engine: Engine, *, raw: bool) -> None:
        """Raises LopaError for what cannot be decoded."""
        self.line = line
        self._settings = engine.decode_settings(line.settings)
        self.sessions: Sequence[DecodeSession] = (
            engine.create_session(line.prompt, self._settings, raw=raw, parse_special=line.parse_special),
        )

    def add_step(self, index: int, event: RequestStep) -> None:
        """The result has all that is needed."""

    def result(self, results: Sequence[GenerationResult]) -> LineResult:
        """The line's result, when its session has ended."""
        (result,) = results
        row = {**identity(self.line.line, self.line.id), **result_as_dict(result, self._settings)}
        return CompletedLine(self.line.line, row, result.tokens, result.steps)


def decode_lines(
    engine: Engine, lines: Sequence[ParsedLine], *, raw: bool, recorder: StepRecorder | None = None
) -> Iterator[LineResult]:
    """One result per line, in input order, each as soon as all before it are there.

    `raw` leaves the chat template out of this project's own lines.
    """
    finished: dict[int, LineResult] = {}
    work: dict[int, PromptWork | OpenAIWork | DecisionWork] = {}
    for index, line in enumerate(lines):
        if isinstance(line, FailedLine):
            finished[index] = line
            continue
        try:
            if isinstance(line, DecisionLine) or (isinstance(line, OpenAILine) and line.url in DECISION_URLS):
                work[index] = DecisionWork(line, engine)
            elif isinstance(line, OpenAILine):
                work[index] = OpenAIWork(line, engine)
            else:
                work[index] = PromptWork(line, engine, raw=raw)
        except (ApiError, LopaError) as error:
            finished[index] = _failed_line(line, error)
    of_session = [(index, at) for index, request in work.items() for at in range(len(request.sessions))]
    sessions = [session for request in work.values() for session in request.sessions]
    results: defaultdict[int, list[GenerationResult]] = defaultdict(list)
    next_index = 0

    def pop_in_order() -> Iterator[LineResult]:
        nonlocal next_index
        while next_index in finished:
            yield finished.pop(next_index)
            next_index += 1

    def on_event(number: int, event: RequestStep) -> None:
        index, at = of_session[number]
        work[index].add_step(at, event)

    yield from pop_in_order()
    numbers = [lines[index].line for index, _ in of_session]
    on_step = None if recorder is None else recorder.listener(numbers)
    for number, result in engine.run(sessions, on_step=on_step, on_event=on_event) if sessions else ():
        index, _ = of_session[number]
        if isinstance(result, Exception):
            finished.setdefault(index, _failed_line(work[index].line, result))
        else:
            results[index].append(result)
            if len(results[index]) == len(work[index].sessions):
                finished[index] = work[index].result(results[index])
        yield from pop_in_order()


def _failed_line(line: RequestLine, error: Exception) -> FailedLine:
    worker_lost = isinstance(error, WorkerLostError)
    if not isinstance(line, OpenAILine):
        return FailedLine(line.line, str(error), line.id, worker_lost)
    response = api_error(error)
    row = response_row(line, response.status, response.body)
    return FailedLine(line.line, response.message, line.custom_id, worker_lost, row)
