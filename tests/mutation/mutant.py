"""Mutants: faults of one line in one function, not in texts of errors and logs, annotations and docstrings."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_PAIRS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, And Or, Add Sub, Mult FloorDiv, min max, any all"
SWAPS = {a: b for pair in _PAIRS.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
UNCHANGED = ("annotation", "returns", "decorator_list")
LOGGERS = ("logger", "_log", "warnings")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Mutant:
    """A changed line, found by its function and text, since line numbers move. Without an operator it is a control:
    nothing is changed, and no test may fail."""

    package: str
    module: str
    function: str = ""
    line: int = 0
    nth: int = 0
    """Equal lines in front of it in the function."""
    operator: str = ""
    original: str = ""
    mutated: str = ""
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Phase of tests → its outcome, seconds, and the test that failed."""

    def apply(self, text: str) -> str | None:
        """The module with the fault in it; None: the line is no longer there."""
        if not self.operator:
            return text
        lines = text.split("\n")
        function = functions(ast.parse(text)).get(self.function)
        span = range(function.lineno - 1, function.end_lineno or 0) if function else ()
        equal = [at for at in span if lines[at].strip() == self.original]
        if len(equal) <= self.nth:
            return None
        lines[equal[self.nth]] = lines[equal[self.nth]].replace(self.original, self.mutated)
        return "\n".join(lines)


def functions(parent: ast.AST, prefix: str = "") -> dict[str, Function]:
    """Functions and methods by qualified name; of those that share one, the last."""
    found: dict[str, Function] = {}
    for node in ast.iter_child_nodes(parent):
        if isinstance(node, Function):
            found[prefix + node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= functions(node, f"{prefix}{node.name}.")
    return found


def mutants(package: str, module: str, text: str) -> Iterator[Mutant]:
    """All mutants of a module. A few may not compile: parts of f-strings, and of statements in parentheses."""
    lines = text.split("\n")
    for name, function in functions(ast.parse(text)).items():
        for operator, node, replacement in _changes(function):
            if node.end_lineno == node.lineno:
                line, at = lines[node.lineno - 1].encode(), node.lineno - 1
                changed = line[: node.col_offset] + replacement.encode() + line[node.end_col_offset :]
                original, mutated = lines[at].strip(), changed.decode().strip()
                nth = [each.strip() for each in lines[function.lineno - 1 : at]].count(original)
                yield Mutant(package, module, name, at + 1, nth, operator, original, mutated)


def _changes(node: ast.AST) -> Iterator[tuple[str, Any, str]]:
    """Operator, the node to replace, and the source to put there: of a node and of all below it."""

    def having(**fields: Any) -> str:
        changed = copy.copy(node)
        vars(changed).update(fields)
        return f"({ast.unparse(changed)})" if isinstance(node, ast.expr) else ast.unparse(changed)

    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in LOGGERS:
            return
        case ast.JoinedStr() | ast.Assert():
            return
        case ast.Raise():
            yield "removed raise", node, "pass"
            return
        case ast.Compare(ops=[op]):
            yield "comparison", node, having(ops=[_swapped(op)])
        case ast.BoolOp(op=op):
            yield "and/or", node, having(op=_swapped(op))
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() as op):
            yield "arithmetic", node, having(op=_swapped(op))
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "negation", test, f"(not ({ast.unparse(test)}))"
        case ast.Constant(value=bool() as value):
            yield "constant", node, repr(not value)
        case ast.Constant(value=int() | float() as value):
            yield "constant", node, repr(value + 1)
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield "returned None", value, "None"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "removed statement", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "removed statement", node, "pass"
        case ast.Call(func=ast.Name(id=name)) if name in SWAPS:
            yield "min/max, any/all", node.func, SWAPS[name]
        case ast.Call(args=[*args, _], keywords=[]) if args:
            yield "dropped argument", node, having(args=args)
        case ast.Call(keywords=[*keywords, _]):
            yield "dropped argument", node, having(keywords=keywords)
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in UNCHANGED:
                yield from _changes(child)


def _swapped(op: ast.AST) -> Any:
    return getattr(ast, SWAPS[type(op).__name__])()
