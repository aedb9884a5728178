"""MeasuredModel: the harness's model of a cell, with a record of how each problem was decoded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from pydantic import BaseModel, ConfigDict

from lopa_lab.evaluation.chat_prompt import ChatPrompt
from lopa_lab.evaluation.harness_model import LopaRayLM
from lopa_lab.evaluation.harness_requests import begin_token_id, parse_generation
from lopa_lab.requests import answered
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.trace import TraceStep
from lopa_ray.engine.config import Config


class ProblemRecord(BaseModel):
    """One problem's answer. Times are in seconds from submission, and None where other problems were in flight."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    """Decoded up to the first EOS, stop strings and what follows them included."""
    tokens: int
    """Up to and including the first EOS."""
    steps: int
    """Forward rounds."""
    seconds: float | None
    """Seconds to the last step."""
    first_step_seconds: float | None
    """Seconds to the end of the first step."""
    fills: tuple[int, ...]
    """Number of positions that each step decided, after the first EOS too."""

    @property
    def published_tps(self) -> float | None:
        """Tokens per second as the authors count: all decided tokens ÷ seconds after the first step. None for a single
        step, and without times."""
        if self.seconds is None or self.first_step_seconds is None or self.steps < 2:
            return None
        return sum(self.fills) / (self.seconds - self.first_step_seconds)


class MeasuredModel(LopaRayLM):
    """Decodes with the settings of a cell: of a task's own generation settings only the stop strings count.

    With a `max_num_seqs` of 1 each problem is alone in flight, as the paper measures it, and has times.
    """

    def __init__(self, config: Config, *, local: bool) -> None:
        super().__init__(config, local=local)
        self.decode: GenerationSettings = config.decode
        """May be replaced between evaluations."""
        self.records: list[ProblemRecord] = []
        """Records of the last evaluation, as problems ended."""
        self._alone = config.model.max_num_seqs == 1
        # The authors' launch script asks base models in plain text after BOS, and other models in chats.
        self._base = "-Base" in str(config.model.path)

    @property
    def has_chats(self) -> bool:
        """Whether prompts are chats. Starts the group."""
        return not self._base and self._tokenizer.has_chat_template

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        if self._alone:  # no time is to have the first use of kernels and caches
            super().generate_until(requests[:1], disable_tqdm=True)
        self.records.clear()
        return super().generate_until(requests, disable_tqdm)

    def _settings(
        self, generation: Mapping[str, Any], repeat: int
    ) -> tuple[GenerationSettings, tuple[str, ...]]:
        return parse_generation({"until": generation.get("until")}, self.decode, repeat)

    def _encode(self, context: str) -> list[int]:
        ids = super()._encode(context)
        if not self._base or isinstance(context, ChatPrompt):
            return ids
        begin = begin_token_id(self._engine)
        return ids if ids[:1] == [begin] else [begin, *ids]

    def _decode(self, sessions: Sequence[DecodeSession]) -> Iterator[tuple[int, GenerationResult]]:
        size = 1 if self._alone else max(1, len(sessions))
        for first in range(0, len(sessions), size):
            part = sessions[first : first + size]
            fills: list[list[int]] = [[] for _ in part]
            ends: list[float] = []

            def on_step(
                at: int, step: TraceStep, fills: list[list[int]] = fills, ends: list[float] = ends
            ) -> None:
                ends.append(time.perf_counter())
                fills[at].append(len(step.decided))

            began = time.perf_counter()
            for at, result in answered(self._engine.run(part, on_step=on_step)):
                self.records.append(
                    ProblemRecord(
                        text=result.text or "",
                        tokens=result.tokens,
                        steps=result.steps,
                        seconds=ends[-1] - began if self._alone and ends else None,
                        first_step_seconds=ends[0] - began if self._alone and ends else None,
                        fills=tuple(fills[at]),
                    )
                )
                yield first + at, result
