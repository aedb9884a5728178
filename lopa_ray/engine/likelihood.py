"""Log-likelihoods of given tokens, on any engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lopa_ray.decoding.decoders.greedy_match import GreedyMatchSession
from lopa_ray.decoding.likelihood_session import DEFAULT_MC_NUM, LikelihoodSession
from lopa_ray.decoding.request_session import RequestSession
from lopa_ray.engine.base import Engine
from lopa_ray.errors import PromptTooLongError, SettingsError
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.protocol.scoring import ScoreTargets

MAX_ROWS = 2**15
"""Rows in a step of all requests in flight, which bounds its memory; each request evaluates one mask at least."""

MAX_MASKS_PER_STEP = 16  # maximum number of masks that one request evaluates in a step


@dataclass(frozen=True, slots=True)
class LikelihoodRequest:
    """A request for log p(target | prefix), in token ids."""

    prefix: Sequence[int]  # token ids before the target, at least one
    target: Sequence[int]
    check_greedy: bool = False  # whether greedy decoding gives the target is checked too


@dataclass(frozen=True, slots=True)
class LogLikelihood:
    value: float  # in nats: a Monte-Carlo estimate of a lower bound, exact for a target of one token
    is_greedy: bool | None  # whether greedy decoding gives the target; None if the request did not ask for it
    steps: int  # including the steps of the greedy check
    forwards: int  # branch evaluations, including the greedy check's


def log_likelihoods(
    engine: Engine, requests: Sequence[LikelihoodRequest], *, mc_num: int = DEFAULT_MC_NUM, seed: int = 0
) -> Iterator[tuple[int, LogLikelihood | Exception]]:
    """Yields (index, log-likelihood or error) when each request ends. `mc_num` is the number of Monte-Carlo draws of a
    request; they depend on `seed` and the request's tokens only. Raises PromptError, PromptTooLongError and
    SettingsError before anything runs, also for a configuration that decodes by block diffusion: such models predict
    the masks of a block from the text up to the block's end."""
    decode = engine.config.decode
    if decode.prompt_attention.kind == "blocks":
        raise SettingsError(
            f"log-likelihoods: got decode.decoder {decode.decoder}; allowed: a model that predicts masks under full "
            "attention, as Dream and LLaDA do, and its decoder"
        )
    answers = [_Answer() for _ in requests]
    sessions: list[RequestSession] = []
    owners: list[int] = []  # for each session the index of its request
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
        index = owners[event.request_key]
        answer = answers[index]
        if isinstance(event, RequestFailure):
            if not answer.failed:
                answer.failed = True
                yield index, event.error
            continue
        answer.steps += 1
        answer.forwards += len(event.plan.branches)
        finished = event.outcome.finish_reason is not None
        if isinstance(event.plan.branches[0].scoring, ScoreTargets):
            # Terms are added one by one, so that the sum does not depend on how steps group them.
            for term in event.outcome.confidences:
                answer.value += term
        elif finished:
            answer.is_greedy = list(event.outcome.canvas) == list(requests[index].target)
        answer.unfinished -= finished
        if not answer.unfinished and not answer.failed:
            yield index, answer.build()


@dataclass(slots=True)
class _Answer:
    """The sums over the steps of a request so far."""

    value: float = 0.0
    is_greedy: bool | None = None
    steps: int = 0
    forwards: int = 0
    unfinished: int = 0  # sessions of the request that have not ended
    failed: bool = False

    def build(self) -> LogLikelihood:
        return LogLikelihood(self.value, self.is_greedy, self.steps, self.forwards)


def _sessions(engine: Engine, request: LikelihoodRequest, mc_num: int, seed: int) -> Iterator[RequestSession]:
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
