"""DiffusionGemma's recorded decodes: their settings, their noise, and the comparison of their calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lopa_lab.conformance.cases import Case, Difference, MalformedCaseError, token_ids
from lopa_lab.conformance.replayed import ReplayedRun, check, check_close
from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.decoding.decoders.renoising import RenoisingSession, RenoisingSettings
from lopa_ray.decoding.given_tokens import length_through_end
from lopa_ray.decoding.noise import SeededNoise
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.plan import Plan
from lopa_ray.protocol.plan_inputs import EncoderInputs

ENTROPY_TOLERANCE = 2e-4


def renoising_settings(recorded: RowSettings) -> tuple[type[RenoisingSettings], dict[str, Any]]:
    """The class and the arguments of a row's settings. The answer has whole canvases there.

    Raises MalformedCaseError.
    """
    pop, length = recorded.pop, _canvas_length(recorded.row)
    pop("pad_token_id", int, default=None)
    return RenoisingSettings, {
        "max_new_tokens": -(-pop("max_new_tokens", int) // length) * length,
        "max_denoising_steps": pop("max_denoising_steps", int),
        "stability_threshold": pop("stability_threshold", int),
        **{
            name: pop(name, int, float)
            for name in ("entropy_bound", "t_min", "t_max", "confidence_threshold")
        },
        "ignore_eos": True,
        "stop_token_ids": tuple(pop("eos_token_id", list)),
    }


def _encodes(plan: Plan) -> bool:
    return isinstance(plan.inputs, EncoderInputs)


def _canvas_length(row: dict[str, Any]) -> int:
    try:
        return len(token_ids(row["canvases"][0], "init"))
    except (KeyError, IndexError, TypeError) as error:
        raise MalformedCaseError(f"canvases: {type(error).__name__}: {error}") from None


class RecordedNoise(SeededNoise):
    """The noise of a recorded decode, in place of a seed's noise."""

    def __init__(self, row: dict[str, Any]) -> None:
        self._prompt = len(row["prompt"])
        self._first = [tuple(canvas["init"]) for canvas in row["canvases"]]
        self._steps = [step for canvas in row["canvases"] for step in canvas["steps"]]

    def first_canvas(self, positions: range) -> tuple[int, ...]:
        return self._first[(positions.start - self._prompt) // len(positions)]

    def draws(self, call: int, positions: range) -> tuple[float, ...]:
        return tuple(self._steps[call - 1]["u"])

    def new_tokens(self, call: int, positions: range) -> tuple[int, ...]:
        return tuple(self._steps[call - 1]["renoise"])


class RecordedRenoisingSession(RenoisingSession):
    """A session that takes its noise from a recorded row."""

    def __init__(self, session: DecodeSession, row: dict[str, Any]) -> None:
        """Take the place of a session that has not begun, with its prompt and settings."""
        super().__init__(session.prompt, session.settings, session.vocabulary, session.constraint)
        self.noise = RecordedNoise(row)


def compare_canvases(case: Case, run: ReplayedRun) -> Iterator[Difference]:
    """The calls of encoder and decoder, what each call of the decoder got and found most likely, and the answer."""
    row = case.row
    got_windows = [
        [plan.start, len(plan.canvas), "e" if _encodes(plan) else "d", int(_encodes(plan))]
        for plan, _ in run.rounds
    ]
    yield from check("windows", 0, row["windows"], got_windows)
    calls = [(plan, outcome) for plan, outcome in run.rounds if not _encodes(plan)]
    call, most = 0, row["settings"]["max_denoising_steps"]
    for canvas in row["canvases"]:
        expected = list(canvas["init"])
        for number, step in enumerate(canvas["steps"], 1):
            if call == len(calls):
                return
            plan, outcome = calls[call]
            call += 1
            yield from check("n", number, step["n"], most + 1 - number)
            # Whether the calls on this canvas end by the rule: a canvas with all its calls ends in any case.
            goes_on = call < len(calls) and calls[call][0].start == plan.start
            if number < most:
                yield from check("stop", number, step["stop"], not goes_on)
            yield from check("canvas", number, expected, list(plan.canvas))
            likely = list(outcome.canvas[plan.start - run.prompt_len :])
            yield from check("argmax", number, step["argmax"], likely)
            mean = sum(step["entropy"]) / len(step["entropy"])
            yield from check_close("entropy", number, [mean], [-outcome.confidences[0]], ENTROPY_TOLERANCE)
            expected = list(step["renoise"])
            for position, token in step["accepted"]:
                expected[position] = token
    tokens = _padded(row, run.tokens)
    yield from check("tokens", 0, token_ids(row, "tokens"), tokens)
    pad = row["settings"]["pad_token_id"]
    per_call = sum(token != pad for token in tokens) / len(calls)
    yield from check_close("tokens_per_forward", 0, [row["tokens_per_forward"]], [per_call])


def _padded(row: dict[str, Any], tokens: list[int]) -> list[int]:
    """Pad as published: what is after the first end is padding, if there is a pad token."""
    settings = row["settings"]
    length = length_through_end(tokens, settings["eos_token_id"])
    if length is None or settings["pad_token_id"] is None:
        return tokens
    return tokens[:length] + [settings["pad_token_id"]] * (len(tokens) - length)
