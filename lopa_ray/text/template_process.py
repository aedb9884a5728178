"""Chat templates are rendered in a process of their own: Jinja's sandbox keeps them from running code of Python, but
neither from operations that take hours nor from texts of gigabytes, and nothing can interrupt one of these."""

from __future__ import annotations

import json
import os
from threading import Lock
from typing import Any

import jinja2

from lopa_ray.errors import CheckpointError, PromptError
from lopa_ray.limited_process import LimitedProcess, ProcessLimitError

RENDER_S = 5.0
"""Processor time that a template may take for one chat. Usual templates take milliseconds."""

LARGEST_TEXT, LARGEST_REASON = 2**22, 2**10
"""Characters of a rendered chat, some times more than the largest request has, and of an error that is shown."""

_THEIRS = "transformers.utils.chat_template_utils"


class _Renderer:
    def render(self, call: str) -> str:
        """`call`: arguments of `render_jinja_template` of transformers for one chat, in JSON. Raises CheckpointError
        with what the template is or does wrong, and PromptError with what it says against the chat."""
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            text = str(render_jinja_template(**json.loads(call))[0][0])
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"is not valid Jinja ({error})") from None
        except MemoryError:
            raise
        except Exception as error:  # a template's expressions may raise any exception
            raise PromptError(str(error)[:LARGEST_REASON]) from None
        if len(text) > LARGEST_TEXT:
            raise CheckpointError(f"exceeds its limits (it writes more than {LARGEST_TEXT} characters)")
        return text


class TemplateProcess:
    """The process, started when it is first needed and again after it has ended. For any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: LimitedProcess | None = None

    def forget(self) -> None:
        """Leave the process, in a fork, to the parent, which may hold the lock."""
        self._lock, self._process = Lock(), None

    def start(self) -> None:
        """Starts in the background (about 1 s), so that the first chat does not wait."""
        with self._lock:
            self._running()

    def _running(self) -> LimitedProcess:
        if self._process is None or not self._process.alive:
            self._process = LimitedProcess(_Renderer(), preload=_THEIRS)
        return self._process

    def render(self, **arguments: Any) -> str:
        """See `_Renderer.render`. Raises also CheckpointError for a template beyond its limits, OverloadedError, and
        TypeError or ValueError for arguments that are not JSON."""
        call = json.dumps(arguments)
        with self._lock:
            try:
                return str(self._running().call("render", call, RENDER_S))
            except ProcessLimitError as error:
                raise CheckpointError(f"exceeds its limits ({error})") from None


TEMPLATE_PROCESS = TemplateProcess()  # of this process

os.register_at_fork(after_in_child=TEMPLATE_PROCESS.forget)
