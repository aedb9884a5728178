"""A page of the API reference: the public names that a package's `__init__.pyi` lists, for mkdocstrings."""

from __future__ import annotations

import ast
from itertools import groupby
from pathlib import Path

TOPICS = {
    "lopa_ray.engine": "Engines and requests",
    "lopa_ray.text": "Engines and requests",
    "lopa_ray.decoding": "Decoders: their settings, sessions and results",
    "lopa_ray.config": "Settings of models, groups and requests",
    "lopa_ray.decisions": "Decisions",
    "lopa_ray.protocol": "Steps and events",
    "lopa_ray.errors": "Errors",
}
"""Topics of the folders and modules of a package with many public names, in the order of the page."""


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


def summary(root: Path, path: str) -> str:
    """The first sentence of the docstring of the class, function or alias at `package.module.Name`."""
    module, _, name = path.rpartition(".")
    body = ast.parse((root / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")).body
    for node, behind in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return _first_sentence(ast.get_docstring(node) or "")
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _assigned(node):
            match behind:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    return _first_sentence(text)
            return ""
    raise LookupError(f"{module} has no {name}")


def _assigned(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _first_sentence(docstring: str) -> str:
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return paragraph.split(". ")[0].removesuffix(".").replace("|", "\\|") + "."


def _topic(name_and_path: tuple[str, str]) -> str | None:
    return TOPICS.get(".".join(name_and_path[1].split(".")[:2]))


def api_page(root: Path, package: str) -> str:
    """Markdown of the page: tables of all names by topic, then what mkdocstrings writes of each name."""

    order = list(dict.fromkeys(TOPICS.values()))
    names = public_names(root, package)
    names.sort(key=lambda name: order.index(about) if (about := _topic(name)) else len(order))
    lines = [
        f"# {package}",
        "",
        f"These are all public names of `{package}`: import them as `from {package} import NAME`.",
        "Other modules may change with any release.",
        "",
    ]
    for about, group in groupby(names, _topic):
        lines += [*([f"**{about}**", ""] if about else []), "| name | |", "|---|---|"]
        lines += [f"| [`{name}`](#{path}) | {summary(root, path)} |" for name, path in group]
        lines.append("")
    for _, path in names:
        lines += [f"::: {path}", ""]
    return "\n".join(lines)
