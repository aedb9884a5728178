"""What torch-npu offers of what `lopa_ray/execution/npu.py` uses, recorded from its published packages.

    pip download --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 --python-version 3.11 \\
        --implementation cp torch-npu==2.13.0
    python tests/record/torch_npu_signatures.py torch_npu-2.13.0-*.whl torch_npu-2.9.0-*.whl

writes `tests/data/torch_npu.json`: version → name → signature, for the oldest and the newest release that fits the
torch releases of pyproject.toml. Nothing of a package is installed or run.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path

from support.paths import DATA, ROOT

SOURCE = ROOT / "lopa_ray" / "execution" / "npu.py"
RECORD = DATA / "torch_npu.json"

SCHEMAS = "torch_npu/csrc/aten/npu_native_functions_by_codegen.yaml"
EXPORTS = "torch_npu/utils/custom_ops.py"
# As of 2.13, and before.
PROCESS_GROUPS = ("torch_npu/_init/registry/distributed.py", "torch_npu/__init__.py")


@dataclass(frozen=True, slots=True)
class Use:
    """A name of torch-npu in a source file; called with so many arguments and these keywords, or set."""

    name: str
    arguments: int = 0
    keywords: tuple[str, ...] = ()
    is_set: bool = False


def find_uses(source: str) -> list[Use]:
    """Every use of torch_npu, followed through variables that hold the result of a call."""
    tree = ast.parse(source)
    constructors: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            constructors |= {ast.unparse(target): ast.unparse(node.value.func) for target in node.targets}
    uses = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("torch_npu."):
            keywords = tuple(keyword.arg or "**" for keyword in node.keywords)
            uses.append(Use(ast.unparse(node.func), len(node.args), keywords))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            constructor = constructors.get(ast.unparse(node.value), "")
            if constructor.startswith("torch_npu."):
                uses.append(Use(f"{constructor}.{node.attr}", is_set=True))
    return uses


def parse_signature(text: str) -> Signature:
    """The signature of a recorded "(Tensor query, *, Tensor? mask=None, ...) -> ..." or "(store, rank)"."""
    parameters, kind = [], Parameter.POSITIONAL_OR_KEYWORD
    # Commas inside of types and defaults have no space behind them.
    for part in filter(None, text[1 : text.index(")")].split(", ")):
        if part == "*":
            kind = Parameter.KEYWORD_ONLY
            continue
        declared, _, default = part.partition("=")
        parameters.append(
            Parameter(declared.split()[-1], kind, default=default if default else Parameter.empty)
        )
    return Signature(parameters)


def read_wheel(wheel: Path) -> dict[str, str]:
    """Name → signature ("set" for an attribute that may be set). Raises LookupError for what the wheel lacks."""
    names = sorted({use.name for use in find_uses(SOURCE.read_text(encoding="utf-8"))})
    with zipfile.ZipFile(wheel) as files:
        return {name: _find_signature(name, files) for name in names}


def _find_signature(name: str, files: zipfile.ZipFile) -> str:
    if name.startswith("torch_npu._C._distributed_c10d."):
        return _process_group_signature(name, files)
    if name.startswith("torch_npu.npu."):
        for node in ast.parse(files.read("torch_npu/npu/__init__.py")).body:
            if isinstance(node, ast.FunctionDef) and node.name == name.rpartition(".")[2]:
                return f"({ast.unparse(node.args)})"
    operator = name.removeprefix("torch_npu.")
    schema = re.search(rf"func: {operator}(\(.*)$", files.read(SCHEMAS).decode(), re.MULTILINE)
    if schema is None or f"{name} = torch.ops.npu.{operator}\n" not in files.read(EXPORTS).decode():
        raise LookupError(f"{files.filename} has no {name}")
    return schema[1]


def _process_group_signature(name: str, files: zipfile.ZipFile) -> str:
    """The arguments by which the package itself makes its process groups: bindings have no signature."""
    path = next(path for path in PROCESS_GROUPS if path in files.namelist())
    for node in ast.walk(ast.parse(files.read(path))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
            return f"({', '.join(map(ast.unparse, node.args))})"
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and name.endswith(f"Options.{node.attr}")
        ):
            return "set"
    raise LookupError(f"{files.filename} makes no process group with {name}")


def main(wheels: list[str]) -> None:
    """Record each wheel under the version in its name."""
    record = {Path(wheel).name.split("-")[1]: read_wheel(Path(wheel)) for wheel in wheels}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
