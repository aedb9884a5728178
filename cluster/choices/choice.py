"""ChoiceState: what a choice has so far; turns the steps of its session into outputs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from cluster.choices.answer_format import AnswerFormat
from cluster.choices.answer_parser import Answer, AnswerDelta
from cluster.choices.canvas_view import CanvasView
from cluster.choices.messages import (
    ChoiceCost,
    ChoiceFinished,
    ChoiceFinishReason,
    ChoicesOutput,
    ChoicesRequest,
    TextDelta,
    TokenLogprob,
)
from lopa_ray.decoding.result import ResultBuilder
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.trace import TraceStep
from lopa_ray.protocol.events import RequestStep
from lopa_ray.protocol.outcome import Decision
from lopa_ray.protocol.step_report import PHASES
from lopa_ray.text.detokenizer import IncrementalDetokenizer
from lopa_ray.text.tokenizer import Tokenizer


class ChoiceState:
    """Follows one session. Its outputs end with one `ChoiceFinished`."""

    def __init__(
        self,
        request: ChoicesRequest,
        index: int,
        session: DecodeSession,
        tokenizer: Tokenizer,
        answer_format: AnswerFormat,
        position_bytes: int,
        arrival_time: float,
    ) -> None:
        """`arrival_time`: when the request arrived, on the monotonic clock."""
        self.index, self.session, self.arrival_time = index, session, arrival_time
        self.finished = False
        self._request = request
        self._tokenizer = tokenizer
        self._result = ResultBuilder(session)
        self._new_detokenizer = partial(
            IncrementalDetokenizer,
            partial(tokenizer.decode, shown=answer_format.shown_tokens),
            session.vocabulary.mask_token_id,
            session.end_token_ids,
            # A call that has to be valid is not cut.
            () if request.forced_tools else request.stop,
        )
        self._new_parser = answer_format.new_parser
        self._detokenizer, self._parser = self._new_detokenizer(), self._new_parser()
        self._shown = Answer()  # what was sent last, if the request is `diffusing`
        self._follows_text = bool(request.stream or request.stop or not request.parallel_tool_calls)
        self._echo = ""
        self._decisions: dict[int, Decision] = {}
        self._canvas_view = CanvasView(index, session, tokenizer)
        self._logprobs: list[TokenLogprob] = []
        self._is_text_empty = True  # true until a token with a log-probability has added to the text
        self._phase_seconds = dict.fromkeys(PHASES, 0.0)
        self._first_step: float | None = None
        self._position_bytes, self._commit_bytes = position_bytes, 0
        self._trace_events: list[Mapping[str, Any]] = []

    @property
    def prompt_tokens(self) -> int:
        """The prompt's tokens, with the tokens that the request gives of the answer."""
        return len(self.session.prompt) + len(self.session.given)

    def start(self) -> Iterator[ChoicesOutput]:
        if self._request.echo:
            prompt = self._request.prompts[self.index // self._request.n]
            # The text of the request, because a tokenizer may normalise it.
            self._echo = prompt if isinstance(prompt, str) else self._tokenizer.decode(self.session.prompt)
            if self._request.stream:
                yield TextDelta(self.index, self._echo)
        if self.session.finished:
            yield self._finish(self.session.finish_reason)

    def add_step(self, event: RequestStep) -> Iterator[ChoicesOutput]:
        now, outcome = time.monotonic(), event.outcome
        step = self._result.add_step(event.plan, outcome)
        self._add_stats(event, step, now)
        step.update(self._decisions, lambda _, decision: decision)
        if self._request.stream_canvas:
            yield self._canvas_view.of_step(step, outcome.considered, now - self.arrival_time)
        finished = outcome.finish_reason is not None
        if finished or self._follows_text:
            yield from self._new_text(final=finished)
        if self._request.stream and self._request.diffusing:
            yield from self._whole_text(final=finished or self._text_ended)
        if finished or self._text_ended:
            yield self._finish("stop" if self._text_ended else outcome.finish_reason)

    def finish_at_deadline(self) -> Iterator[ChoicesOutput]:
        """End with the text that is final so far, a beginning of the whole answer; returns the last outputs."""
        yield from self._new_text(final=False)
        yield self._finish("stop" if self._text_ended else None)

    # Text

    @property
    def _text_ended(self) -> bool:
        """The text has all that it may have, though positions may be masked."""
        return self._detokenizer.stopped or self._parser.complete

    def _new_text(self, *, final: bool) -> Iterator[ChoicesOutput]:
        first = len(self._logprobs)
        answer = first + len(self.session.prompt)
        delta = self._detokenizer.update(self._result.returned_canvas, final=final)
        if self._request.logprobs:
            self._logprobs += [self._logprob(self._decision(answer + at)) for at in range(delta.tokens)]
        parts = list(self._parser.update(delta.text, final=final or self._detokenizer.stopped))
        if self._request.stream and (parts or delta.tokens):
            logprobs, tokens = tuple(self._logprobs[first:]), self._detokenizer.num_emitted_tokens
            for part in parts or [AnswerDelta()]:
                if self._request.diffusing and part.tool_call is None:
                    continue
                yield TextDelta(self.index, part.content, logprobs, part.reasoning, part.tool_call, tokens)
                logprobs = ()

    def _whole_text(self, *, final: bool) -> Iterator[ChoicesOutput]:
        """All that is decided by now, if it has changed: without masks, so text on both sides of a hole is joined. What
        may be the beginning of a stop text, a tag or a call is held back."""
        parser = self._parser
        if not final:
            mask, parser = self.session.vocabulary.mask_token_id, self._new_parser()
            ids = [token for token in self._result.text_token_ids if token != mask]
            for _ in parser.update(self._new_detokenizer().update(ids).text):
                pass
        shown, self._shown = self._shown, Answer(parser.answer.content, parser.answer.reasoning)
        if shown != self._shown:
            tokens = self._detokenizer.num_emitted_tokens
            yield TextDelta(self.index, self._shown.content, reasoning=self._shown.reasoning, tokens=tokens)

    def _decision(self, position: int) -> Decision:
        token = self.session.given.tokens.get(position - len(self.session.prompt))
        return self._decisions[position] if token is None else Decision(position, token, 1.0, 0.0, ())

    def _logprob(self, decision: Decision) -> TokenLogprob:
        top = tuple((*self._token(token), logprob) for token, logprob in decision.top_logprobs)
        own = self._token(decision.token)
        return TokenLogprob(*own, decision.logprob, top, self._in_text(decision.token))

    def _token(self, token: int) -> tuple[int, str, bytes]:
        return token, self._tokenizer.token_text(token), self._tokenizer.token_bytes(token)

    def _in_text(self, token: int) -> bytes:
        """See `TokenLogprob.in_text`."""
        if not self._tokenizer.decode([token, token]):
            return b""
        first, self._is_text_empty = self._is_text_empty, False
        alone = self._tokenizer.decode([token])
        return alone.encode() if first and "\ufffd" not in alone else self._tokenizer.token_bytes(token)

    def _finish(self, reason: ChoiceFinishReason | None) -> ChoiceFinished:
        self.finished = True
        answer = self._parser.answer
        return ChoiceFinished(
            choice=self.index,
            text=self._echo + answer.content,
            finish_reason="tool_calls" if answer.tool_calls and reason == "stop" else reason,
            stats=self._stats(),
            logprobs=tuple(self._logprobs),
            reasoning=answer.reasoning,
            reasoning_tokens=len(self._tokenizer.encode_markup(answer.reasoning)),
            tool_calls=tuple(answer.tool_calls),
            trace=tuple(self._trace_events),
            trajectory=self._result.trajectory(self._num_returned),
        )

    # Statistics

    def _add_stats(self, event: RequestStep, step: TraceStep, now: float) -> None:
        commit = event.plan.commit
        if self._first_step is None:
            self._first_step = now
        if commit is not None:
            self._commit_bytes += sum(map(len, commit.spans)) * self._position_bytes
        if event.timing is None:
            return
        phase_seconds = asdict(event.timing)
        for phase in PHASES:
            self._phase_seconds[phase] += phase_seconds[phase]
        if self._request.trace:
            self._trace_events += self._chrome_events(step, phase_seconds, now)

    def _chrome_events(
        self, step: TraceStep, phase_seconds: Mapping[str, float], now: float
    ) -> Iterator[Mapping[str, Any]]:
        """The successive phases of a step, ending now; microseconds since the request arrived."""
        at = now - self.arrival_time - sum(phase_seconds.values())
        arguments = {
            "step": step.step,
            "branches": len(step.branches),
            "winner": step.branch_name(step.winner),
            "rule_steps": step.depth,
            "accepted": " ".join(map(step.branch_name, step.accepted)),
            "tokens": len(step.decided),
        }
        for phase in PHASES:
            yield {
                "name": phase, "cat": "step", "ph": "X", "pid": 0, "tid": self.index,
                "ts": round(at * 1e6, 1), "dur": round(phase_seconds[phase] * 1e6, 1), "args": arguments,
            }  # fmt: skip
            at += phase_seconds[phase]

    @property
    def _num_returned(self) -> int:
        """Tokens of the returned canvas up to the answer's end, or to its stop text."""
        canvas = self._result.returned_canvas
        text_tokens = self._detokenizer.num_text_tokens(canvas)
        has_end = not self._detokenizer.stopped and text_tokens < len(canvas)
        return text_tokens + (has_end and canvas[text_tokens] in self.session.end_token_ids)

    def _stats(self) -> ChoiceCost:
        now = time.monotonic()
        result, settings = self._result, self.session.settings
        tokens = result.num_generated(self._num_returned)
        return ChoiceCost(
            steps=result.steps,
            forwards=result.forwards,
            rule_steps=result.rule_steps,
            tokens=tokens,
            tpf=tokens / result.steps if result.steps else 0.0,
            seconds=now - self.arrival_time,
            queued_seconds=(self._first_step or now) - self.arrival_time,
            seed=settings.seed,
            phases_seconds=self._phase_seconds,
            commit_bytes=self._commit_bytes,
        )
