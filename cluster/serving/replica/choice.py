"""Choice: one answer in the making, from the steps of its session to messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from cluster.serving.messages import (
    BranchView,
    CanvasSnapshot,
    Cell,
    Finished,
    Job,
    Message,
    Piece,
    RequestStats,
    TokenLogprob,
)
from cluster.serving.replica.detokenizer import IncrementalDetokenizer
from lopa_ray.decoding.result import ResultBuilder, TraceStep
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.plan import Decision, FinishReason, Plan, StepOutcome, StepTiming
from lopa_ray.text.tokenizer import Tokenizer, require_tokenizer

PHASES = tuple(field.name for field in fields(StepTiming))


class Choice:
    """Follows one session. Its messages end with one `Finished`."""

    def __init__(
        self,
        job: Job,
        index: int,
        session: DecodeSession,
        tokenizer: Tokenizer | None,
        position_bytes: int,
        arrived: float,
    ) -> None:
        """`arrived`: when the job came, on the monotonic clock. Raises PromptError without a tokenizer."""
        self.index, self.session, self.arrived = index, session, arrived
        self.done = False
        self._job = job
        self._tokenizer = require_tokenizer(tokenizer)
        settings, vocabulary = session.settings, session.vocabulary
        self._result = ResultBuilder(len(session.prompt), settings, session.end_token_ids, with_trace=False)
        self._stream = IncrementalDetokenizer(
            self._tokenizer.decode, vocabulary.mask_token_id, session.end_token_ids, job.stop
        )
        self._echo = ""
        self._decisions: dict[int, Decision] = {}
        self._decided_in: dict[int, int] = {}
        self._logprobs: list[TokenLogprob] = []
        self._phases = dict.fromkeys(PHASES, 0.0)
        self._first_step: float | None = None
        self._position_bytes, self._commit_bytes = position_bytes, 0
        self._events: list[Mapping[str, Any]] = []

    def begin(self) -> Iterator[Message]:
        """What there is before the first step."""
        if self._job.echo:
            prompt = self._job.prompts[self.index // self._job.n]
            # A text as it was sent: a tokenizer may normalise it.
            self._echo = prompt if isinstance(prompt, str) else self._tokenizer.decode(self.session.prompt)
            if self._job.pieces:
                yield Piece(self.index, self._echo)
        if self.session.finished:
            yield self._finish(self.session.finish_reason)

    def advance(self, plan: Plan, outcome: StepOutcome, timing: StepTiming) -> Iterator[Message]:
        """Take in a step."""
        now = time.monotonic()
        step = self._result.add_step(plan, outcome)
        self._account(plan, timing, now)
        for decision in step.decided:
            at = decision.position - len(self.session.prompt)
            self._decisions[at] = decision
            self._decided_in[at] = step.step
        if self._job.pictures:
            yield self._picture(step, now)
        finished = outcome.finish_reason is not None
        if finished or self._job.pieces or self._job.stop:
            yield from self._text(last=finished)
        if finished or self._stream.stopped:
            yield self._finish("stop" if self._stream.stopped else outcome.finish_reason)

    def cut_short(self) -> Iterator[Message]:
        """End with what is decided by now."""
        yield from self._text(last=True)
        yield self._finish("stop" if self._stream.stopped else None)

    # Text

    def _text(self, *, last: bool) -> Iterator[Message]:
        first = len(self._logprobs)
        piece = self._stream.advance(self._result.canvas, last=last)
        if self._job.logprobs:
            self._logprobs += [self._logprob(self._decisions[first + at]) for at in range(piece.tokens)]
        if self._job.pieces and (piece.text or piece.tokens):
            yield Piece(self.index, piece.text, tuple(self._logprobs[first:]))

    def _logprob(self, decision: Decision) -> TokenLogprob:
        top = tuple((*self._token(token), logprob) for token, logprob in decision.top_logprobs)
        shown = bool(self._tokenizer.decode([decision.token]))
        return TokenLogprob(*self._token(decision.token), decision.logprob, top, shown)

    def _token(self, token: int) -> tuple[str, bytes]:
        return self._tokenizer.token_text(token), self._tokenizer.token_bytes(token)

    def _finish(self, reason: FinishReason | None) -> Finished:
        self.done = True
        return Finished(
            choice=self.index,
            text=self._echo + self._stream.text,
            finish_reason=reason,
            figures=self._figures(),
            logprobs=tuple(self._logprobs),
            trace=tuple(self._events),
        )

    # Figures

    def _account(self, plan: Plan, timing: StepTiming, now: float) -> None:
        if self._first_step is None:
            self._first_step = now
        if plan.commit is not None:
            self._commit_bytes += sum(map(len, plan.commit.spans)) * self._position_bytes
        spent = asdict(timing)
        for phase in PHASES:
            self._phases[phase] += spent[phase]
        if self._job.trace:
            self._events += self._chrome_events(plan, spent, now)

    def _chrome_events(
        self, plan: Plan, spent: Mapping[str, float], now: float
    ) -> Iterator[Mapping[str, Any]]:
        """The phases of a step one behind the other, ending now; microseconds since the job arrived."""
        at = now - self.arrived - sum(spent.values())
        arguments = {"step": plan.step, "branches": len(plan.branches)}
        for phase in PHASES:
            yield {
                "name": phase, "cat": "step", "ph": "X", "pid": 0, "tid": self.index,
                "ts": round(at * 1e6, 1), "dur": round(spent[phase] * 1e6, 1), "args": arguments,
            }  # fmt: skip
            at += spent[phase]

    def _figures(self) -> RequestStats:
        now = time.monotonic()
        result, settings = self._result, self.session.settings
        decided = self._stream.decided(result.canvas)
        ended = not self._stream.stopped and self.session.has_ended(result.canvas[decided : decided + 1])
        return RequestStats(
            steps=result.steps,
            forwards=result.forwards,
            tokens=decided + ended,
            seconds=now - self.arrived,
            queued_s=(self._first_step or now) - self.arrived,
            seed=settings.seed,
            phases_s=dict(self._phases),
            commit_bytes=self._commit_bytes,
        )

    # Pictures

    def _picture(self, step: TraceStep, now: float) -> CanvasSnapshot:
        cells = tuple(
            Cell(self._tokenizer.token_text(token), self._decided_in[at])
            if at in self._decided_in
            else Cell("", 0)
            for at, token in enumerate(step.canvas)
        )
        racers = tuple(
            BranchView(step.branch_name(at), self._tried(branch.fills), branch.confidence)
            for at, branch in enumerate(step.branches)
        )
        return CanvasSnapshot(self.index, step.step, cells, racers, step.winner, now - self.arrived)

    def _tried(self, fills: Sequence[tuple[int, int]]) -> str:
        prompt = len(self.session.prompt)
        return " ".join(
            f"{self._tokenizer.token_text(token)}@{position - prompt}" for position, token in fills
        )
