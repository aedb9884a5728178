"""LocalEngine: the whole decoder in one process. The oracle for everything above it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from lopa_ray.config.config import Config
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.engine import Engine, EngineEvent
from lopa_ray.errors import RequestCancelledError
from lopa_ray.execution.attention_kernels import choose_kernel
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.model.checkpoint import load_config, read_weights
from lopa_ray.model.config import ModelConfig
from lopa_ray.model.parallel import ALONE, Parallel
from lopa_ray.model.weights import DTYPE_NAMES, Weights, build_model, random_weights, weight_bytes
from lopa_ray.scheduling.prefix_index import PrefixIndex
from lopa_ray.scheduling.scheduler import Event, Failure, Scheduler
from lopa_ray.text.tokenizer import Tokenizer

DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}

WARM_UP_ROWS = (48, 16)
"""Of the forwards that compile layers: int8 products of few rows have graphs of their own."""


def weights_of(config: Config, device: torch.device | str) -> Weights:
    """The parameters that a configuration asks for, one by one on `device`. Raises CheckpointError."""
    model = config.model
    dtype = DTYPES[model.dtype]
    if model.load_format == "dummy":
        return random_weights(shape_of(config), seed=0, dtype=dtype, device=device)
    return read_weights(
        model.folder, dtype=dtype, device=device, lora=model.lora, quantization=model.quantization
    )


def shape_of(config: Config) -> ModelConfig:
    """The model that a configuration asks for, without its weights. Raises CheckpointError."""
    return load_config(config.model.folder).quantized(config.model.quantization)


def size_of_weights(config: Config) -> int:
    """Bytes that they take up. Raises CheckpointError."""
    return weight_bytes(shape_of(config), DTYPES[config.model.dtype])


def load_runner(
    config: Config,
    tokenizer: Tokenizer | None,
    weights: Weights | None = None,
    parallel: Parallel = ALONE,
) -> BranchRunner:
    """The runner that a configuration asks for, of the `weights` if somebody has read them already. `parallel` says
    which shard of the model it has; `group.tensor_parallel_size` is the business of who makes the shards.

    Raises CheckpointError or SettingsError if it cannot be.
    """
    model = config.model
    device = DEVICES[model.device]
    torch_device = device.require()
    shape, dtype = shape_of(config), DTYPES[model.dtype]
    if weights is None:
        weights = weights_of(config, torch_device if parallel.size == 1 else "cpu")
    loaded = build_model(shape, weights, dtype=dtype, device=torch_device, parallel=parallel)
    if model.compile:
        loaded.compile_layers(device.compiler)
    # A tokenizer smaller than the embedding means that the rest is padding nobody can decode.
    choosable = None if tokenizer is None else min(tokenizer.vocab_size, shape.vocab_size)
    runner = BranchRunner(
        loaded,
        slots=model.slots,
        max_model_len=model.max_model_len,
        choosable=choosable,
        kernel=choose_kernel(model.attention, device, loaded.share, dtype),
    )
    if model.compile and parallel.size == 1:  # shards compute together, which is in steps only
        _make_graphs(runner)
    return runner


def _make_graphs(runner: BranchRunner) -> None:
    """Compile now, where nobody waits: a first step that takes minutes would pass for a hung worker."""
    for rows in WARM_UP_ROWS:
        runner.logits([0] * min(rows, runner.cache.capacity))
    runner.cache.reset(0, None)


class LocalEngine(Engine):
    """Session, scheduler and runner in this process and thread."""

    def __init__(self, config: Config, runner: BranchRunner, tokenizer: Tokenizer | None) -> None:
        """Over a runner that is there already; see `from_config` and `from_pretrained`."""
        super().__init__(config, runner.vocabulary, tokenizer)
        self.runner = runner
        self._scheduler = Scheduler.from_config(config)
        self._inboxes: dict[int, deque[Event]] = {}
        """Where the events of each unfinished request go: several calls of `events` may be open."""

    @property
    def prefixes(self) -> PrefixIndex:
        """What is kept of prompts, and how often that was of use."""
        return self._scheduler.prefixes

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Load what the configuration names. Raises CheckpointError."""
        tokenizer = Tokenizer.from_pretrained(config.model.folder)
        return cls(config, load_runner(config, tokenizer), tokenizer)

    @classmethod
    def from_pretrained(cls, path: str | Path = "demo", **model: Any) -> Self:
        """Load a checkpoint folder; `model` are `ModelSettings` (dtype, device, lora, slots, max_model_len).

        Raises SettingsError and CheckpointError.
        """
        return cls.from_config(Config.parse({"model": {"path": str(path), **model}}))

    def events(self, sessions: Sequence[DecodeSession]) -> Iterator[EngineEvent]:
        """See `Engine.events`. Whoever asks for an event runs a step for all requests in flight."""
        inbox: deque[Event] = deque()
        index_of: dict[int, int] = {}
        try:
            for index, session in enumerate(sessions):
                request = self._scheduler.submit(session)
                index_of[request] = index
                self._inboxes[request] = inbox
            while inbox or any(request in self._inboxes for request in index_of):
                if not inbox:
                    self._step()
                    continue
                event = inbox.popleft()
                if isinstance(event, Failure):
                    yield index_of[event.request], event.error
                else:
                    yield index_of[event.request], event.plan, event.outcome
        finally:
            for request in index_of:
                if self._inboxes.pop(request, None) is not None:
                    self._scheduler.fail(request, RequestCancelledError("the caller stopped listening"))

    def _step(self) -> None:
        scheduler = self._scheduler
        reports = [self.runner.step(plan) for plan in scheduler.plan(num_workers=1)]
        for event in scheduler.advance(reports) if reports else scheduler.drain():
            inbox = self._inboxes.get(event.request)
            if inbox is None:
                continue
            inbox.append(event)
            if isinstance(event, Failure) or event.outcome.finish_reason is not None:
                del self._inboxes[event.request]
