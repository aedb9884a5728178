"""Log-likelihoods of given tokens, on any engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lopa_ray.config.decoder_settings import BlockDiffusionSettings
from lopa_ray.decoding.greedy_match import GreedyMatchSession
from lopa_ray.decoding.likelihood import DEFAULT_MC_NUM, LikelihoodSession
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine.base import Engine
from lopa_ray.errors import PromptTooLongError, SettingsError
from lopa_ray.protocol.events import RequestFailure

MAX_ROWS = 2**15
"""Rows that the requests in flight have in a step, together and at most (but for one mask of each): what a step takes
of memory grows with it."""

MAX_MASKS_PER_STEP = 16
"""Masks of one request in a step, at most."""


@dataclass(frozen=True, slots=True)
class LikelihoodRequest:
    """What log p(target | prefix) is asked for, in token ids."""

    prefix: Sequence[int]
    """At least one token."""
    target: Sequence[int]
    check_greedy: bool = False
    """Find out, too, whether greedy decoding gives the target; see `GreedyMatchSession`."""


@dataclass(frozen=True, slots=True)
class LogLikelihood:
    """What a request is answered with."""

    value: float
    """In nats: a Monte-Carlo estimate of a lower bound (see `LikelihoodSession`), exact for a target of one token."""
    is_greedy: bool | None
    """None: it was not asked for."""
    steps: int
    """Forward rounds, those of the greedy check included."""
    forwards: int
    """Branch evaluations, likewise."""


def log_likelihoods(
    engine: Engine, requests: Sequence[LikelihoodRequest], *, mc_num: int = DEFAULT_MC_NUM, seed: int = 0
) -> Iterator[tuple[int, LogLikelihood | Exception]]:
    """Yields (index, log-likelihood or error) as requests end; all are in flight together as far as slots allow.

    The draws of a request depend on `seed` and its tokens, and on nothing else. Raises PromptError, PromptTooLongError
    and SettingsError before anything runs; SettingsError also where the configuration decodes by block diffusion,
    whose models predict masks in a block from what is before its end, not from a whole target.
    """
    if isinstance(engine.config.decode, BlockDiffusionSettings):
        raise SettingsError(
            "log-likelihoods: got decode.decoder block_diffusion; allowed: a model that predicts masks under full "
            "attention, as Dream and LLaDA do, and its decoder"
        )
    answers = [_Answer() for _ in requests]
    sessions: list[DecodeSession] = []
    owners: list[int] = []
    """Of each session the index of its request."""
    for index, request in enumerate(requests):
        for session in _sessions(engine, request, mc_num, seed):
            if not session.finished:
                sessions.append(session)
                owners.append(index)
                answers[index].unfinished += 1
        if request.check_greedy:
            answers[index].is_greedy = not request.target
    for index, answer in enumerate(answers):
        if not answer.unfinished:
            yield index, answer.build()
    for event in engine.events(sessions):
        index = owners[event.request_id]
        answer = answers[index]
        if isinstance(event, RequestFailure):
            if not answer.failed:
                answer.failed = True
                yield index, event.error
            continue
        answer.steps += 1
        answer.forwards += len(event.plan.branches)
        finished = event.outcome.finish_reason is not None
        if event.plan.targets:
            for term in event.outcome.confidences:  # one by one: the sum does not depend on steps
                answer.value += term
        elif finished:
            answer.is_greedy = list(event.outcome.canvas) == list(requests[index].target)
        answer.unfinished -= finished
        if not answer.unfinished and not answer.failed:
            yield index, answer.build()


@dataclass(slots=True)
class _Answer:
    """What the steps of a request have given so far."""

    value: float = 0.0
    is_greedy: bool | None = None
    steps: int = 0
    forwards: int = 0
    unfinished: int = 0
    """Sessions."""
    failed: bool = False

    def build(self) -> LogLikelihood:
        return LogLikelihood(self.value, self.is_greedy, self.steps, self.forwards)


def _sessions(engine: Engine, request: LikelihoodRequest, mc_num: int, seed: int) -> Iterator[DecodeSession]:
    model, length = engine.config.model, len(request.prefix) + len(request.target)
    if length > model.max_model_len:
        raise PromptTooLongError(
            f"a prefix of {len(request.prefix)} tokens and a target of {len(request.target)} exceed max_model_len "
            f"{model.max_model_len}; shorten the prefix or raise max_model_len"
        )
    masks = MAX_ROWS // (model.max_num_seqs * max(1, length))
    yield LikelihoodSession(
        request.prefix,
        request.target,
        engine.vocabulary,
        mc_num=mc_num,
        seed=seed,
        masks_per_step=min(max(1, masks), MAX_MASKS_PER_STEP),
    )
    if request.check_greedy:
        yield GreedyMatchSession(request.prefix, request.target, engine.vocabulary)
