"""Replaying cases through an engine, one model at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from lopa_lab.conformance.canvas_forwards import compare_canvas_forwards
from lopa_lab.conformance.cases import (
    Case,
    Difference,
    MalformedCaseError,
    UnsupportedCaseError,
    Verdict,
    token_ids,
)
from lopa_lab.conformance.forwards import compare_logits, forward_inputs
from lopa_lab.conformance.recorded import compare_decode, published_session, recorded_settings
from lopa_lab.conformance.replayed import ReplayedRun
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.base import Engine
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import LopaError, PromptError, PromptTooLongError
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.protocol.vocabulary import Vocabulary

EngineFactory: TypeAlias = Callable[[Config], Engine]

MAX_IN_FLIGHT = 8
"""Cases that are decoded together, as far as there are as many of one model."""


@dataclass(frozen=True, slots=True)
class PreparedCase:
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

    Checkpoints are folders in `models`, adapters in `lora` next to it, and draft adapters in the checkpoint's folder.
    `make_engine` decides where steps run; it is handed one configuration per model, in float32. Forward cases need a
    `LocalEngine`; without `logits` they are skipped, and their verdicts say so.
    """
    groups: dict[tuple[str, str | None], list[PreparedCase]] = {}
    for case in cases:
        prepared = case if isinstance(case, Verdict) else _prepare(case, logits)
        if isinstance(prepared, Verdict):
            yield prepared
        else:
            groups.setdefault((prepared.case.model, prepared.case.lora), []).append(prepared)
    for (model, lora), group in groups.items():
        merged = models.resolve().parent / "lora" / lora if lora else None
        beside = models / model / lora if lora else None
        adapters = {"lora": merged, "draft_adapter": None}
        if beside is not None and beside.is_dir():
            adapters = {"lora": None, "draft_adapter": beside}
        yield from _replay_group(models / model, adapters, group, make_engine, device)


def _prepare(case: Case, logits: bool) -> PreparedCase | Verdict:
    try:
        if case.kind == "forward":
            length = max(start + len(ids) for start, ids in forward_inputs(case))
            if logits:
                return PreparedCase(case, [], None, length)
            return case.verdict("skipped", "logits never leave a worker; the local engine compares them")
        settings = recorded_settings(case)
        prompt = token_ids(case.row, "prompt")
        return PreparedCase(case, prompt, settings, len(prompt) + settings.max_new_tokens)
    except LopaError as error:
        return _error_verdict(case, error)


def _error_verdict(case: Case, error: BaseException) -> Verdict:
    """The verdict of a case that raised: not supported if that was on purpose, else an error."""
    refused = isinstance(error, UnsupportedCaseError | PromptError)
    reason = str(error) if isinstance(error, LopaError) else f"{type(error).__name__}: {error}"
    return case.verdict("not supported" if refused else "error", reason)


def _replay_group(
    model: Path,
    adapters: Mapping[str, Path | None],
    group: list[PreparedCase],
    make_engine: EngineFactory,
    device: str,
) -> Iterator[Verdict]:
    for name, folder in (("model", model), ("LoRA adapter", adapters["lora"])):
        if folder is not None and not folder.is_dir():
            missing = MalformedCaseError(f"no {name} {folder}; put the recorded checkpoint there")
            yield from (_error_verdict(prepared.case, missing) for prepared in group)
            return
    remaining = dict(enumerate(group))
    try:
        config = Config.parse(
            {
                "model": {
                    "path": str(model),
                    **{name: None if folder is None else str(folder) for name, folder in adapters.items()},
                    "device": device,
                    "dtype": "float32",
                    "max_num_seqs": min(MAX_IN_FLIGHT, len(group)),
                    "max_model_len": max(2, *(prepared.length for prepared in group)),
                }
            }
        )
        with make_engine(config) as engine:
            for at, verdict in _run_group(engine, group):
                remaining.pop(at, None)
                yield verdict
    except Exception as error:  # a broken checkpoint or engine ends this model's cases, not the others'
        yield from (_error_verdict(prepared.case, error) for prepared in remaining.values())


def _has_mask(prompt: Sequence[int], error: LopaError, vocabulary: Vocabulary) -> bool:
    """Whether a prompt was refused for a mask token in it. Published decoders fill such masks or hang on them."""
    if not isinstance(error, PromptError) or isinstance(error, PromptTooLongError):
        return False
    return vocabulary.mask_token_id in prompt and all(0 <= token < vocabulary.size for token in prompt)


def _run_group(engine: Engine, group: list[PreparedCase]) -> Iterator[tuple[int, Verdict]]:
    """(index in the group, verdict) as cases end."""
    sessions: list[DecodeSession] = []
    running: list[int] = []
    for at, prepared in enumerate(group):
        if prepared.settings is None:
            if not isinstance(engine, LocalEngine):
                raise TypeError(f"forward cases need a LocalEngine, got {type(engine).__name__}")
            compare = compare_canvas_forwards if engine.vocabulary.canvas_length else compare_logits
            yield at, _verdict(prepared.case, partial(compare, prepared.case, engine.runner))
            continue
        try:
            session = engine.create_session(prepared.prompt, prepared.settings)
            session = published_session(prepared.case, session)
        except LopaError as error:
            verdict = _error_verdict(prepared.case, error)
            yield at, replace(verdict, by_design=_has_mask(prepared.prompt, error, engine.vocabulary))
            continue
        if session.finished:
            run = ReplayedRun.of(prepared.prompt, engine.vocabulary)
            yield at, _verdict(prepared.case, partial(compare_decode, prepared.case, run))
        else:
            sessions.append(session)
            running.append(at)
    runs = [ReplayedRun.of(group[at].prompt, engine.vocabulary) for at in running]
    for event in engine.events(sessions) if sessions else ():
        index = event.request_key
        case = group[running[index]].case
        if isinstance(event, RequestFailure):
            yield running[index], _error_verdict(case, event.error)
            continue
        runs[index].rounds.append((event.plan, event.outcome))
        if event.outcome.finish_reason is not None:
            yield running[index], _verdict(case, partial(compare_decode, case, runs[index]))


def _verdict(case: Case, compare: Callable[[], list[Difference]]) -> Verdict:
    try:
        differences = compare()
    except LopaError as error:
        return _error_verdict(case, error)
    return case.verdict("differs" if differences else "passed", differences=differences)
