"""ConstraintCache: the constraints of one model's vocabulary, compiled in other processes, and what these refused."""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import Any, Literal, TypeAlias, cast

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.constraints.constraint_compiler import ConstraintCompiler
from lopa_ray.engine.compile_pool import Call, CompilePool
from lopa_ray.errors import SettingsError, about_setting
from lopa_ray.protocol.vocabulary import Vocabulary
from lopa_ray.text.tokenizer import Tokenizer

MAX_CONSTRAINTS, MAX_SMALL = 48, 2000  # kept constraints, and kept sizes of schemas and refusals

Method: TypeAlias = Literal["compile", "schema_size"]  # of `ConstraintCompiler`


@dataclass(slots=True)
class _SharedCall:
    call: Call
    waiting: int = 0


class ConstraintCache:
    """A cache of constraints, for use from any thread. What is known already never waits for a compilation."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, limit_s: float) -> None:
        """`limit_s`: processor time that a compilation may take, in seconds."""
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._pool = CompilePool(self._new_compiler, limit_s)
        self._lock = Lock()
        self._shared: dict[bytes, _SharedCall] = {}
        self._constraints: OrderedDict[bytes, Future[Any]] = OrderedDict()
        self._small: OrderedDict[bytes, Future[Any]] = OrderedDict()

    def constraint(self, settings: GenerationSettings) -> Constraint | None:
        """The constraint that accepts exactly the texts that `settings` allow; None if they allow all texts. Raises
        SettingsError if the tokenizer is not byte-level, for what `ConstraintCompiler.compile` refuses or what is too
        large to be compiled; OverloadedError if the machine lacks memory or time."""
        with about_setting(settings.constraint_setting):
            self._check_tokenizer()
            with self._future("compile", settings.constraint_spec) as future:
                return cast(Constraint | None, _result(future))

    async def prepare_constraint(self, settings: GenerationSettings, client: str = "") -> None:
        """Compile what `constraint` then returns at once. Raises what it raises. If the last caller that waits for a
        compilation is cancelled, the compilation ends. `client`: who asks for it; see `CompilePool`."""
        with about_setting(settings.constraint_setting):
            self._check_tokenizer()
            await self._prepare("compile", settings.constraint_spec, client)

    def schema_size(self, text: str) -> int:
        """The number of states of a JSON schema's automaton. Raises SettingsError for a schema that is not supported or
        too large, and OverloadedError."""
        with self._future("schema_size", text) as future:
            return cast(int, _result(future))

    async def prepare_schema_size(self, text: str, client: str = "") -> None:
        """Prepare `schema_size`, as `prepare_constraint` prepares `constraint`."""
        await self._prepare("schema_size", text, client)

    async def _prepare(self, method: Method, argument: object, client: str) -> None:
        with self._future(method, argument, client) as future:
            if not future.done():
                loop, ended = asyncio.get_running_loop(), asyncio.Event()
                future.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
                await ended.wait()
            _result(future)

    @contextmanager
    def _future(self, method: Method, argument: object, client: str = "") -> Iterator[Future[Any]]:
        """The outcome of a call, kept or still to come. A call is cancelled with its last caller."""
        key = sha256(repr((method, argument)).encode()).digest()
        kept = self._kept(key)
        if kept is not None:
            yield kept
            return
        shared = self._join(key, method, argument, client)
        try:
            yield shared.call.future
        finally:
            self._leave(key, shared)

    def _kept(self, key: bytes) -> Future[Any] | None:
        with self._lock:
            for outcomes in (self._constraints, self._small):
                if key in outcomes:
                    outcomes.move_to_end(key)
                    return outcomes[key]
        return None

    def _join(self, key: bytes, method: Method, argument: object, client: str) -> _SharedCall:
        with self._lock:
            shared = self._shared.get(key)
            if shared is not None:
                shared.waiting += 1
                return shared
            shared = self._shared[key] = _SharedCall(self._pool.start(method, argument, client), waiting=1)
        # Without the lock, since a call that has ended already is kept here and now.
        shared.call.future.add_done_callback(partial(self._keep, key, shared))
        return shared

    def _leave(self, key: bytes, shared: _SharedCall) -> None:
        with self._lock:
            shared.waiting -= 1
            abandoned = not shared.waiting and self._shared.get(key) is shared
            if abandoned:
                del self._shared[key]
        if abandoned:
            self._pool.cancel(shared.call)

    def _keep(self, key: bytes, shared: _SharedCall, future: Future[Any]) -> None:
        with self._lock:
            if self._shared.get(key) is shared:
                del self._shared[key]
            if future.cancelled():
                return
            error = future.exception()
            if error is not None and not isinstance(error, SettingsError):
                return
            is_small = error is not None or shared.call.method == "schema_size"
            outcomes, most = (self._small, MAX_SMALL) if is_small else (self._constraints, MAX_CONSTRAINTS)
            outcomes[key] = future
            if len(outcomes) > most:
                outcomes.popitem(last=False)

    def _check_tokenizer(self) -> None:
        if not self._tokenizer.byte_level:
            raise SettingsError(
                "structured output and bad_words need a byte-level tokenizer, whose tokens have the same bytes in any "
                "place; this checkpoint's is not byte-level: leave response_format, guided_* and bad_words out"
            )

    def _new_compiler(self) -> ConstraintCompiler:
        tokenizer, size = self._tokenizer, self._vocabulary.size
        known = min(size, tokenizer.vocab_size) if tokenizer.byte_level else 0
        token_bytes = [tokenizer.regular_token_bytes(token) for token in range(known)]
        token_bytes += [b""] * (size - known)
        return ConstraintCompiler(self._vocabulary, token_bytes, tokenizer.added_tokens)


def _result(future: Future[Any]) -> Any:
    """The result of a call. Raises a copy of its error: callers add to errors which setting they are about."""
    error = future.exception()
    if error is not None:
        raise copy.copy(error)
    return future.result()
