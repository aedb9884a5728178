"""A page of the API reference: the public names that a package's `__init__.pyi` lists, for mkdocstrings."""

from __future__ import annotations

import ast
from pathlib import Path


def public_names(root: Path, package: str) -> list[tuple[str, str]]:
    """Name and full path (`package.module.Name`) of all public names, in the order of the stub."""
    stub = root / package.replace(".", "/") / "__init__.pyi"
    imports = [
        node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)
    ]
    return [
        (alias.asname, f"{package}.{node.module}.{alias.name}")
        for node in imports
        for alias in node.names
        if alias.asname
    ]


def api_page(root: Path, package: str) -> str:
    """Markdown of the page."""
    lines = [
        f"# {package}",
        "",
        f"These are all public names of `{package}`: import them as `from {package} import NAME`.",
        "Other modules may change with any release.",
        "",
    ]
    for _, path in public_names(root, package):
        lines += [f"::: {path}", ""]
    return "\n".join(lines)
