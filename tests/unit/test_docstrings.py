"""Docstrings of public functions: shapes and dtypes of tensors and arrays, and the errors that are raised."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("lopa_ray", "actors", "cluster", "lopa_lab")
ARRAY = re.compile(r"\b(Tensor|NDArray|ndarray)\b")
SHAPE = re.compile(r"\[[^\]]+\]")
DTYPE = re.compile(r"\b(dtype|fp32|fp64|float32|float64|bf16|u?int\d+|int8|[Bb]ool)\b")
REFERENCE = re.compile(r"[Ss]ee `[\w.]+`")
"""To the function that it calls, which says all of this."""
HELP_TEXTS = re.compile(r"(cluster/cli|lopa_lab/cli)/\w*commands?\.py|cluster/jobs/__main__\.py")
"""Docstrings of commands are printed by --help."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def public_functions() -> Iterator[tuple[str, Function]]:
    """All functions and methods without an underscore, as FILE:LINE NAME, except methods that another class declares.

    A method without a docstring has that of the base class or protocol in which it is declared.
    """
    modules = {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    classes = [
        node for module in modules.values() for node in ast.walk(module) if isinstance(node, ast.ClassDef)
    ]
    bases = {ast.unparse(base).partition("[")[0] for node in classes for base in node.bases}
    declared = Counter(
        function.name
        for node in classes
        if node.name in bases or "Protocol" in map(ast.unparse, node.bases)
        for function in node.body
        if isinstance(function, Function) and ast.get_docstring(function)
    )
    for name, module in modules.items():
        if not HELP_TEXTS.fullmatch(name):
            for where, node in _functions_of(module, name):
                if ast.get_docstring(node) or not declared[node.name]:
                    yield where, node


def _functions_of(parent: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, Function]]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from _functions_of(node, name)
        elif isinstance(node, Function) and not node.name.startswith("_"):
            yield f"{name}:{node.lineno} {node.name}", node


def raised_here(node: ast.AST) -> bool:
    """Whether the function's own body raises something anew that it does not catch by itself."""
    if isinstance(node, ast.Raise):
        return node.exc is not None
    if isinstance(node, ast.Try) and node.handlers:
        # What the body raises may be for its own handlers.
        parts: list[ast.AST] = [*node.handlers, *node.orelse, *node.finalbody]
    else:
        parts = [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda)
        ]
    return any(map(raised_here, parts))


def annotations(node: Function) -> list[str]:
    """The annotations of the parameters and of the result."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    annotated = [argument.annotation for argument in arguments if argument.annotation is not None]
    return [ast.unparse(annotation) for annotation in (*annotated, *([node.returns] if node.returns else []))]


FUNCTIONS = list(public_functions())


def test_there_are_functions() -> None:
    assert len(FUNCTIONS) > 500


@pytest.mark.parametrize("package", PACKAGES)
def test_shapes_and_dtypes_are_said(package: str) -> None:
    silent = []
    for where, node in FUNCTIONS:
        text = ast.get_docstring(node) or ""
        if where.startswith(package) and any(map(ARRAY.search, annotations(node))):
            said = SHAPE.search(text) and DTYPE.search(text)
            silent += [] if said or REFERENCE.search(text) else [where]
    assert not silent, "no shape or no dtype in the docstring:\n" + "\n".join(silent)


@pytest.mark.parametrize("package", PACKAGES)
def test_errors_are_said(package: str) -> None:
    silent = [
        where
        for where, node in FUNCTIONS
        if where.startswith(package)
        and raised_here(node)
        and not re.search(r"\b[Rr]aises?\b", ast.get_docstring(node) or "")
        and not REFERENCE.search(ast.get_docstring(node) or "")
    ]
    assert not silent, "the docstring does not say what is raised:\n" + "\n".join(silent)
