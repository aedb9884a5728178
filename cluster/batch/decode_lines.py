"""Decodes the lines of a file, in flight together, with one result per line in input order."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from cluster.batch.decision_work import DECISION_URLS, DecisionWork
from cluster.batch.lines import (
    DecisionLine,
    LineResult,
    OpenAILine,
    ParsedLine,
    PromptLine,
    RequestLine,
    failed_line,
    identity,
    response_row,
)
from cluster.batch.openai_line import OpenAIWork
from cluster.batch.result_format import StepRecorder, result_as_dict
from cluster.openai.errors import ApiError, api_error
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.decoding.result import ResultBuilder
from lopa_ray.decoding.trace import trace_step
from lopa_ray.engine.base import Engine
from lopa_ray.errors import LopaError, WorkerLostError
from lopa_ray.protocol.events import RequestFailure, RequestStep


class PromptWork:
    def __init__(self, line: PromptLine, engine: Engine, *, raw: bool) -> None:
        """Raises LopaError for what cannot be decoded."""
        self.line, self._engine = line, engine
        self._settings = engine.decode_settings(line.settings)
        session = engine.create_session(
            line.prompt, self._settings, raw=raw, parse_special=line.parse_special
        )
        self.sessions = (session,)
        self._builder = ResultBuilder(session)

    def add_step(self, index: int, event: RequestStep) -> None:
        self._builder.add_step(event.plan, event.outcome)

    def result(self, began: float) -> LineResult:
        """`began`: when all lines were submitted, by `perf_counter`."""
        result = self._engine.result_of(self._builder, began)
        row = {**identity(self.line.line, self.line.id), **result_as_dict(result, self._settings)}
        return LineResult(self.line.line, row, tokens=result.tokens, steps=result.steps)


def decode_lines(
    engine: Engine, lines: Sequence[ParsedLine], *, raw: bool, recorder: StepRecorder | None = None
) -> Iterator[LineResult]:
    """One result per line, in input order. `raw` leaves the chat template out of this project's own lines."""
    finished: dict[int, LineResult] = {}
    work: dict[int, PromptWork | OpenAIWork | DecisionWork] = {}
    for index, line in enumerate(lines):
        if isinstance(line, LineResult):
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
            finished[index] = _result_of_error(line, error)
    unfinished = {index: len(request.sessions) for index, request in work.items()}
    next_index = 0

    def pop_in_order() -> Iterator[LineResult]:
        nonlocal next_index
        while next_index in finished:
            yield finished.pop(next_index)
            next_index += 1

    def end_session(index: int) -> None:
        unfinished[index] -= 1
        if not unfinished[index]:
            finished[index] = work[index].result(began)

    began = time.perf_counter()
    running: list[tuple[int, int, RequestSession]] = []
    for index, request in work.items():
        for at, session in enumerate(request.sessions):
            if session.finished:
                end_session(index)
            else:
                running.append((index, at, session))
    on_step = None if recorder is None else recorder.listener([lines[index].line for index, *_ in running])
    yield from pop_in_order()
    for event in engine.events([session for *_, session in running]) if running else ():
        index, at, _ = running[event.request_key]
        if isinstance(event, RequestFailure):
            finished.setdefault(index, _result_of_error(work[index].line, event.error))
        else:
            work[index].add_step(at, event)
            if on_step is not None:
                on_step(event.request_key, trace_step(event.plan, event.outcome))
            if event.outcome.finish_reason is not None:
                end_session(index)
        yield from pop_in_order()


def _result_of_error(line: RequestLine, error: Exception) -> LineResult:
    worker_lost = isinstance(error, WorkerLostError)
    if not isinstance(line, OpenAILine):
        return failed_line(line.line, str(error), line.id, worker_lost=worker_lost)
    response = api_error(error)
    row = response_row(line, response.status, response.body)
    return LineResult(line.line, row, response.message, worker_lost)
