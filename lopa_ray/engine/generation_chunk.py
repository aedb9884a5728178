"""GenerationChunk: what a stream yields after each step of a request."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lopa_ray.decoding.result import GenerationResult, ResultBuilder
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.events import RequestEvent, RequestFailure
from lopa_ray.text.detokenizer import IncrementalDetokenizer
from lopa_ray.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """An answer after one step: text that became final, and the canvas with all that is decided after it."""

    step: int
    """How many steps the request has had."""
    text: str | None
    """Text after all earlier chunks' text, which can no longer change; often empty. All chunks joined are the result's
    text. None without a tokenizer."""
    canvas: tuple[int, ...]
    """Token ids after the prompt; undecided positions have `engine.vocabulary.mask_token_id`."""
    result: GenerationResult | None = None
    """The finished request, in its last chunk."""


class ChunkBuilder:
    def __init__(self, session: DecodeSession, tokenizer: Tokenizer | None) -> None:
        self._began = time.perf_counter()
        self._builder = ResultBuilder(session)
        self._detokenizer: IncrementalDetokenizer | None = None
        if tokenizer is not None:
            mask = session.vocabulary.mask_token_id
            self._detokenizer = IncrementalDetokenizer(tokenizer.decode, mask, session.end_token_ids, ())

    def add(self, event: RequestEvent) -> GenerationChunk:
        """The chunk of one step. Raises the error that ended the request."""
        if isinstance(event, RequestFailure):
            raise event.error
        self._builder.add_step(event.plan, event.outcome)
        return self.chunk()

    def chunk(self) -> GenerationChunk:
        builder, text, result = self._builder, None, None
        finished = builder.finish_reason is not None
        if self._detokenizer is not None:
            text = self._detokenizer.update(builder.returned_canvas, final=finished).text
        if finished:
            whole = None if self._detokenizer is None else self._detokenizer.text
            result = builder.build(whole, time.perf_counter() - self._began)
        return GenerationChunk(builder.steps, text, builder.canvas, result)
