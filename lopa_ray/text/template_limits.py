"""Limits of a chat template: how long it may run, and how large what it makes may be.

transformers renders templates in Jinja's sandbox, which keeps them from running code of Python, but neither from loops
in loops nor from texts of gigabytes.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
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

LARGEST_VALUE, LARGEST_ITEMS = 2**22, 2**17
"""Characters of a text, and items of a list, that a template may make: some times more than the largest request has."""

LARGEST_WIDTH, LARGEST_BITS = 2**14, 2**14
"""Characters that a text is padded to, and bits of a product or power of integers."""

LINES_PER_CHECK = 256
"""Lines of a template between two looks at the clock."""

_GROWING = (
    "batch",
    "center",
    "format",
    "indent",
    "join",
    "replace",
    "slice",
    "string",
    "tojson",
    "truncate",
    "wordwrap",
)
"""Filters that can make more of a value than it has."""

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

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal lines
        if (
            frame.f_code.co_filename == __file__
        ):  # what is here takes little time, and a lot more if it is traced
            return None
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
    """The value itself. Raises TemplateLimitError if it is too long; its parts are not looked at."""
    if isinstance(value, Sized) and len(value) > (LARGEST_VALUE if isinstance(value, str) else LARGEST_ITEMS):
        raise TemplateLimitError(f"it makes a {type(value).__name__} of {len(value)} parts")
    return value


def check_text(value: Any) -> Any:
    """The value itself. Raises TemplateLimitError if its text would be longer than `LARGEST_VALUE`."""
    if _text_length(value) > LARGEST_VALUE:
        raise TemplateLimitError(f"it makes a text of more than {LARGEST_VALUE} characters")
    return value


def _text_length(value: Any) -> int:
    """About how many characters `str(value)` has. Counting ends beyond `LARGEST_VALUE`: the same part may be in a value
    any number of times. Raises TemplateLimitError for a part that is too long by itself."""
    length, rest = 0, [value]
    while rest and length <= LARGEST_VALUE:
        part = check_size(rest.pop())
        length += len(part) if isinstance(part, str) else 1
        if isinstance(part, Mapping):
            rest += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            rest += part
    return length


def _concat(pieces: Iterable[str]) -> str:
    """What a template or a macro has written. Raises TemplateLimitError if that is longer than `LARGEST_VALUE`."""
    length, written = 0, []
    for piece in pieces:
        length += len(piece)
        if length > LARGEST_VALUE:
            raise TemplateLimitError(f"it writes more than {LARGEST_VALUE} characters")
        written.append(piece)
    return "".join(written)


class _LimitedCode(CodeGenerator):
    """Has operands and results of operations and calls checked."""

    def _checked(self, check: str, visit: Any, node: nodes.Node, frame: Any, **options: Any) -> None:
        self.write(f"environment.{check}(")
        visit(node, frame, **options)
        self.write(")")

    def visit_Add(self, node: nodes.BinExpr, frame: Any) -> None:  # noqa: N802  # Jinja's name
        self._checked("check_text", super().visit_Add, node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Any) -> None:  # noqa: N802
        # As Jinja writes it for templates that escape nothing; the parts are checked before they become one text.
        self.write("str_join(environment.check_text((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def visit_Call(self, node: nodes.Call, frame: Any, forward_caller: bool = False) -> None:  # noqa: N802
        self._checked("check_size", super().visit_Call, node, frame, forward_caller=forward_caller)

    def visit_Filter(self, node: nodes.Filter, frame: Any) -> None:  # noqa: N802
        self._checked("check_size", super().visit_Filter, node, frame)


class _LimitedFilters(dict[str, Any]):
    """Filters, of which those that make long texts of short ones are checked first."""

    def __setitem__(self, name: str, function: Any) -> None:
        super().__setitem__(name, _limited_filter(name, function) if name in _GROWING else function)


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits of what values may have. Raises TemplateLimitError."""

    code_generator_class = _LimitedCode
    intercepted_binops = frozenset(("*", "**", "%"))
    check_size, check_text = staticmethod(check_size), staticmethod(check_text)
    concat = staticmethod(_concat)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, finalize=check_text)
        filters, self.filters = self.filters, _LimitedFilters()
        for name, function in filters.items():
            self.filters[name] = function
        del self.globals["lipsum"]  # it makes as many words as one asks for

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """See Jinja. Raises TemplateLimitError for results that are too large, before they are made."""
        repeats = isinstance(left, Sized) or isinstance(right, Sized)
        sizes = [_text_length(value) if isinstance(value, Sized) else 1 for value in (left, right)]
        numbers = [abs(value) if isinstance(value, int | float) else 1 for value in (left, right)]
        bits = [value.bit_length() if isinstance(value, int) else 1 for value in (left, right)]
        if operator == "*" and (
            (repeats and math.prod(sizes) * math.prod(numbers) > LARGEST_VALUE) or sum(bits) > LARGEST_BITS
        ):
            raise TemplateLimitError("it makes a product that is too large")
        if operator == "**" and bits[0] * numbers[1] > LARGEST_BITS:
            raise TemplateLimitError("it makes a power that is too large")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *arguments: Any, **options: Any) -> Any:
        """See Jinja. Raises TemplateLimitError for methods of texts whose results are too large, before they run."""
        method = getattr(function, "__wrapped__", function)  # Jinja wraps those that format
        if isinstance(owner := getattr(method, "__self__", None), str):
            if method.__name__ == "join" and arguments:
                arguments = (list(arguments[0]), *arguments[1:])
            _check_growth(method.__name__, owner, arguments, options)
        return super().call(context, function, *arguments, **options)


def _limited_filter(name: str, function: Any) -> Any:
    @wraps(function)  # Jinja finds its marks on the function
    def limited(*arguments: Any, **options: Any) -> Any:
        value, *others = arguments[hasattr(function, "jinja_pass_arg") :]
        if name == "join":  # a text's method has the separator first
            value = list(value)
            arguments = (*arguments[: len(arguments) - len(others) - 1], value, *others)
            separator = str(others[0] if others else options.get("d", ""))
            _check_growth(name, separator, (value,), {})
        else:
            _check_growth(name, value, others, options)
        return function(*arguments, **options)

    return limited


def _check_growth(name: str, value: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """For a method of texts, or the filter of the same name: what it is called for, and with what."""
    check_text(value)
    given = (*arguments, *options.values())
    if any(isinstance(number, int) and abs(number) > LARGEST_WIDTH for number in given):
        raise TemplateLimitError(f"it uses a width of more than {LARGEST_WIDTH}")
    texts = [text for text in given if isinstance(text, str)]
    length = 0
    if name == "join" and given and isinstance(given[0], Sized):
        length = _text_length(given[0]) + len(value) * len(given[0])
    elif name == "replace" and len(texts) > 1:
        length = str(value).count(texts[0]) * len(texts[1])
    elif name == "indent" and texts:
        length = str(value).count("\n") * len(texts[0])
    elif name in ("format", "format_map"):
        _check_format(str(value))
    if length > LARGEST_VALUE:
        raise TemplateLimitError(f"it makes a text of {length} characters")


def _check_format(text: str) -> None:
    if _WIDTH.search(text):
        raise TemplateLimitError("it formats with a large width")


@cache
def limit_templates() -> None:
    """Have transformers render templates in a `LimitedEnvironment`, from now on and in the whole process."""
    from transformers.utils import chat_template_utils

    chat_template_utils.ImmutableSandboxedEnvironment = LimitedEnvironment
