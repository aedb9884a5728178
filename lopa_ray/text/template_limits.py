"""Limits of a chat template: how long it may run, and how large what it makes may be.

transformers renders templates in Jinja's sandbox, which keeps them from running code of Python, but neither from loops
in loops nor from texts of gigabytes.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from functools import cache, wraps
from types import FrameType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

RENDER_S = 5.0
"""CPU time that a template may take for one chat. Usual templates take milliseconds."""

LARGEST_VALUE = 2**24
"""Characters of a text, or items of a list, that a template may make: some times more than the largest request."""

LINES_PER_CHECK = 256
"""Lines of a template between two looks at the clock."""

_WIDTH = re.compile(r"[0-9]{6,}|\*")
"""A width in a format: padding of more than any text needs, or one that is an argument."""


class TemplateLimitError(SecurityError):
    """A template has run for too long, or makes a value that is too large."""


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise TemplateLimitError in this thread once it has run for `RENDER_S` seconds inside of the block.

    Only between two lines of Python; `LimitedEnvironment` keeps a single line from taking long.
    """
    deadline, lines = time.thread_time() + RENDER_S, 0

    def trace(_frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += 1
        if lines % LINES_PER_CHECK == 0 and time.thread_time() > deadline:
            raise TemplateLimitError(f"it has run for {RENDER_S:g} s")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def check_size(value: Any) -> Any:
    """The value itself. Raises TemplateLimitError if it is longer than `LARGEST_VALUE`."""
    if isinstance(value, Sized) and len(value) > LARGEST_VALUE:
        raise TemplateLimitError(f"it makes a {type(value).__name__} of {len(value)} parts")
    return value


class _LimitedCode(CodeGenerator):
    """Has the results of operations and calls checked."""

    def _checked(self, visit: Any, node: nodes.Node, frame: Any, **options: Any) -> None:
        self.write("environment.check_size(")
        visit(node, frame, **options)
        self.write(")")

    def visit_Add(self, node: nodes.Add, frame: Any) -> None:  # noqa: N802  # Jinja's name
        self._checked(super().visit_Add, node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:  # noqa: N802
        self._checked(super().visit_Concat, node, frame)

    def visit_Call(self, node: nodes.Call, frame: Any, forward_caller: bool = False) -> None:  # noqa: N802
        self._checked(super().visit_Call, node, frame, forward_caller=forward_caller)

    def visit_Filter(self, node: nodes.Filter, frame: Any) -> None:  # noqa: N802
        self._checked(super().visit_Filter, node, frame)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with `LARGEST_VALUE`. Raises TemplateLimitError."""

    code_generator_class = _LimitedCode
    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name in ("batch", "center", "indent", "round", "slice", "truncate", "wordwrap", "format"):
            self.filters[name] = _with_small_numbers(self.filters[name])
        self.globals.pop("lipsum", None)

    def check_size(self, value: Any) -> Any:
        """See the function `check_size`; generated code calls it."""
        return check_size(value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """See Jinja. Refuses products that are too large before they are made."""
        sizes = [len(value) if isinstance(value, Sized) else abs(value) for value in (left, right)]
        if operator == "**" and max(sizes) > 1000:
            raise TemplateLimitError("it raises a number to a large power")
        if (
            operator == "*"
            and sizes[0] * sizes[1] > LARGEST_VALUE
            and any(isinstance(value, Sized) for value in (left, right))
        ):
            raise TemplateLimitError(f"it repeats a value {sizes[0]} × {sizes[1]} times")
        if operator == "%" and isinstance(left, str) and _WIDTH.search(left):
            raise TemplateLimitError("it formats with a large width")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        """See Jinja. Refuses methods of texts that pad or format with a large width."""
        method = getattr(function, "__wrapped__", function)  # Jinja wraps those that format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _check_numbers(arguments, options)
            if getattr(method, "__name__", "") in ("format", "format_map") and _WIDTH.search(owner):
                raise TemplateLimitError("it formats with a large width")
        return super().call(context, function, *arguments, **options)


def _check_numbers(arguments: Any, options: Any) -> None:
    for value in (*arguments, *options.values()):
        if isinstance(value, int) and abs(value) > LARGEST_VALUE // 1024:
            raise TemplateLimitError(f"it uses {value} as a width")


def _with_small_numbers(function: Any) -> Any:
    """A filter that takes no large numbers as widths and counts."""

    @wraps(function)  # Jinja finds its marks on the function
    def limited(*arguments: Any, **options: Any) -> Any:
        _check_numbers(arguments, options)
        if function.__name__ == "do_format" and isinstance(arguments[0], str) and _WIDTH.search(arguments[0]):
            raise TemplateLimitError("it formats with a large width")
        return function(*arguments, **options)

    return limited


@cache
def limit_templates() -> None:
    """Have transformers render templates in a `LimitedEnvironment`, from now on and in the whole process."""
    from transformers.utils import chat_template_utils

    chat_template_utils.ImmutableSandboxedEnvironment = LimitedEnvironment
