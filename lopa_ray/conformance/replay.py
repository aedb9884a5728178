"""Replaying cases through an engine, one model at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from lopa_ray.config.config import Config
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.conformance.cases import (
    Case,
    MalformedCaseError,
    Status,
    UnsupportedCaseError,
    Verdict,
    token_ids,
)
from lopa_ray.conformance.compare import Run, differences
from lopa_ray.conformance.logits import compare_logits, spans
from lopa_ray.conformance.recorded import decode_settings_of
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.base import Engine
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import LopaError, PromptError
from lopa_ray.protocol.events import RequestFailure

EngineFactory: TypeAlias = Callable[[Config], Engine]

IN_FLIGHT = 8
"""Cases that are decoded together, as far as there are as many of one model."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A case that can be run: what to decode, or nothing to decode but a forward to repeat."""

    case: Case
    prompt: list[int]
    settings: GenerationSettings | None
    length: int
    """Positions that the case takes up."""


def replay(
    cases: Sequence[Case | Verdict],
    models: Path,
    make_engine: EngineFactory,
    *,
    device: str = "cpu",
    logits: bool = True,
) -> Iterator[Verdict]:
    """One verdict per case, as they come: model by model, so that each is loaded once.

    Checkpoints are folders in `models`, adapters in `lora` beside it. `make_engine` decides
    where steps run; it is handed one configuration per model, in float32. Forward cases need
    a `LocalEngine`; without `logits` they are skipped, and their verdicts say so.
    """
    groups: dict[tuple[str, str | None], list[Prepared]] = {}
    for case in cases:
        prepared = case if isinstance(case, Verdict) else _prepare(case, logits)
        if isinstance(prepared, Verdict):
            yield prepared
        else:
            groups.setdefault((prepared.case.model, prepared.case.lora), []).append(prepared)
    for (model, lora), group in groups.items():
        yield from _replay_group(
            models / model,
            models.resolve().parent / "lora" / lora if lora else None,
            group,
            make_engine,
            device,
        )


def _prepare(case: Case, logits: bool) -> Prepared | Verdict:
    try:
        if case.kind == "forward":
            prepared = Prepared(case, [], None, max(start + len(ids) for start, ids in spans(case)))
            if logits:
                return prepared
            reason = "logits never leave a worker; the local engine compares them"
            return Verdict(case.file, case.line, case.id, case.kind, "skipped", reason)
        settings = decode_settings_of(case)
        prompt = token_ids(case.row, "prompt")
        return Prepared(case, prompt, settings, len(prompt) + settings.max_new_tokens)
    except LopaError as error:
        return _verdict(case, error)


def _verdict(case: Case, error: BaseException) -> Verdict:
    """How an error is filed: refused on purpose, or something that is broken."""
    refused = isinstance(error, UnsupportedCaseError | PromptError)
    status: Status = "not supported" if refused else "error"
    reason = str(error) if isinstance(error, LopaError) else f"{type(error).__name__}: {error}"
    return Verdict(case.file, case.line, case.id, case.kind, status, reason)


def _replay_group(
    model: Path, lora: Path | None, group: list[Prepared], make_engine: EngineFactory, device: str
) -> Iterator[Verdict]:
    for name, folder in (("model", model), ("LoRA adapter", lora)):
        if folder is not None and not folder.is_dir():
            missing = MalformedCaseError(f"no {name} {folder}; put the recorded checkpoint there")
            yield from (_verdict(prepared.case, missing) for prepared in group)
            return
    left = dict(enumerate(group))
    try:
        config = Config.parse(
            {
                "model": {
                    "path": str(model),
                    "lora": None if lora is None else str(lora),
                    "device": device,
                    "dtype": "float32",
                    "max_num_seqs": min(IN_FLIGHT, len(group)),
                    "max_model_len": max(2, *(prepared.length for prepared in group)),
                }
            }
        )
        with make_engine(config) as engine:
            for at, verdict in _run_group(engine, group):
                left.pop(at, None)
                yield verdict
    except Exception as error:  # a broken checkpoint or engine ends this model's cases, not the others'
        yield from (_verdict(prepared.case, error) for prepared in left.values())


def _run_group(engine: Engine, group: list[Prepared]) -> Iterator[tuple[int, Verdict]]:
    """(index in the group, verdict) as cases end."""
    sessions: list[DecodeSession] = []
    running: list[int] = []
    for at, prepared in enumerate(group):
        if prepared.settings is None:
            yield at, _forward(engine, prepared.case)
            continue
        try:
            session = engine.create_session(prepared.prompt, prepared.settings)
        except LopaError as error:
            yield at, _verdict(prepared.case, error)
            continue
        if session.finished:
            yield at, _compare(prepared.case, Run(len(prepared.prompt), engine.vocabulary.mask_token_id))
        else:
            sessions.append(session)
            running.append(at)
    runs = [Run(len(group[at].prompt), engine.vocabulary.mask_token_id) for at in running]
    for event in engine.events(sessions) if sessions else ():
        index = event.request_id
        case = group[running[index]].case
        if isinstance(event, RequestFailure):
            yield running[index], _verdict(case, event.error)
            continue
        runs[index].rounds.append((event.plan, event.outcome))
        if event.outcome.finish_reason is not None:
            yield running[index], _compare(case, runs[index])


def _compare(case: Case, run: Run) -> Verdict:
    try:
        found = differences(case, run)
    except MalformedCaseError as error:
        return _verdict(case, error)
    status: Status = "differs" if found else "passed"
    return Verdict(case.file, case.line, case.id, case.kind, status, "", tuple(found))


def _forward(engine: Engine, case: Case) -> Verdict:
    if not isinstance(engine, LocalEngine):
        raise TypeError(f"forward cases need a LocalEngine, got {type(engine).__name__}")
    try:
        found = compare_logits(case, engine.runner)
    except LopaError as error:
        return _verdict(case, error)
    status: Status = "differs" if found else "passed"
    return Verdict(case.file, case.line, case.id, case.kind, status, "", tuple(found))
