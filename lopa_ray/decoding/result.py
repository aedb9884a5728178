"""Makes an answer from a canvas, and a result with its trace and trajectory from plans and outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lopa_ray.decoding.given_tokens import final_part, length_through_end
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.trace import TraceStep, trace_step
from lopa_ray.decoding.trajectory import Trajectory, TrajectoryBuilder
from lopa_ray.protocol.outcome import FinishReason, StepOutcome
from lopa_ray.protocol.plan import Plan


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished request."""

    token_ids: list[int]
    text: str | None
    """Decoded up to the first EOS; None without a tokenizer. With given parts they are in it, with a suffix it is what
    stands before that."""
    finish_reason: FinishReason
    tokens: int
    """Tokens up to and including the first that ends the answer (all of them if none does). Given tokens do not
    count, and of a hole the tokens up to and including its end."""
    steps: int
    """Forward rounds (the published decoders report one more)."""
    forwards: int
    """Branch evaluations, over all steps."""
    rule_steps: int
    """Steps of the unmasking rule: as many as `steps`, or more with verified lookahead."""
    seconds: float
    """Wall-clock time from submission to the last step."""
    prompt_tokens: int
    """Tokens of the prompt, and tokens that the request gives of its answer."""
    trace: tuple[TraceStep, ...] = ()
    trajectory: Trajectory | None = None
    """How the answer came about, with the setting `trajectory`."""

    @property
    def tpf(self) -> float:
        """Tokens per forward: `tokens` ÷ `steps`."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def mean_depth(self) -> float:
        """Denoising steps per step: `rule_steps` ÷ `steps`."""
        return self.rule_steps / self.steps if self.steps else 0.0

    @property
    def tps(self) -> float:
        """Tokens per second of this request."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


class ResultBuilder:
    """Makes the result of one request's steps, on either side of a process border."""

    def __init__(self, session: DecodeSession, with_trace: bool = False) -> None:
        self._session, self._given, self._end_token_ids = session, session.given, session.end_token_ids
        self._with_trace = with_trace
        self._trace: list[TraceStep] = []
        self._trajectory = TrajectoryBuilder(session) if session.settings.trajectory else None
        self.steps = self.forwards = self.rule_steps = 0
        self.canvas: tuple[int, ...] = ()
        self.final_canvas: Sequence[int] = ()
        """The beginning of the canvas whose decided tokens no later step edits."""
        self.finish_reason: FinishReason | None = None if session.settings.max_new_tokens else "length"

    def add_step(self, plan: Plan, outcome: StepOutcome) -> TraceStep:
        self.steps += 1
        self.forwards += len(plan.branches)
        self.rule_steps += len(outcome.rule_steps)
        self.canvas = outcome.canvas
        self.final_canvas = final_part(outcome.canvas, outcome.editable, len(self._session.prompt))
        self.finish_reason = outcome.finish_reason
        step = trace_step(plan, outcome)
        if self._trajectory is not None:
            self._trajectory.add_step(plan, step, outcome.weight_version)
        if self._with_trace:
            self._trace.append(step)
        return step

    @property
    def returned_canvas(self) -> Sequence[int]:
        """The part of `final_canvas` that is returned, up to its first end. See `GivenTokens.returned_text`."""
        return self._given.returned_text(self.final_canvas, self._end_token_ids)

    def num_generated(self, text_tokens: int) -> int:
        """Tokens that were generated up to the last of the first `text_tokens` of `returned_canvas`."""
        return self._given.num_generated(self.final_canvas, self._end_token_ids, text_tokens)

    @property
    def text_token_ids(self) -> list[int]:
        """The ids that make up the text: all before the first end."""
        text = self._given.returned_text(self.canvas, self._end_token_ids)
        length = length_through_end(text, self._end_token_ids)
        return list(text if length is None else text[: length - 1])

    def trajectory(self, num_tokens: int) -> Trajectory | None:
        """The trajectory of an answer of which so many tokens are returned, if the settings ask for it."""
        if self._trajectory is None:
            return None
        ends = self._end_token_ids
        offsets = self._given.returned_offsets(self.canvas, ends)[:num_tokens]
        length = length_through_end([self.canvas[at] for at in offsets], ends)
        stop = offsets[: length or num_tokens]
        return self._trajectory.build(self.canvas, offsets, stop[-1] + 1 if stop else 0)

    def build(self, text: str | None, seconds: float) -> GenerationResult:
        """The finished request. Raises ValueError before the last step."""
        if self.finish_reason is None:
            raise ValueError("the request is not finished")
        ends, given = self._end_token_ids, self._given
        returned = given.returned_text(self.canvas, ends)
        stop = length_through_end(returned, ends) if self._session.settings.stop_at_eos else None
        token_ids = list(returned[:stop])
        return GenerationResult(
            token_ids=token_ids,
            text=text,
            finish_reason=self.finish_reason,
            tokens=given.num_generated(self.canvas, ends),
            steps=self.steps,
            forwards=self.forwards,
            rule_steps=self.rule_steps,
            seconds=seconds,
            prompt_tokens=len(self._session.prompt) + len(given),
            trace=tuple(self._trace),
            trajectory=self.trajectory(len(token_ids)),
        )
