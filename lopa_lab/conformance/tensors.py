"""Tensors that a file of cases has beside it: `NAME_cases.jsonl` has its logits in `NAME_logits.safetensors`.

Shape suffixes: R rows, V vocabulary, P experts per row.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lopa_lab.conformance.cases import Case, MalformedCaseError


def recorded_tensor(case: Case, of: str, name: object) -> Tensor:
    """The tensor `name` of a case, from `NAME_<of>.safetensors`, or from another such file in the folder. Its
    shape and dtype are as recorded: logits fp32 [R, V], experts int32 [R, P], their weights fp32 [R, P].

    Raises MalformedCaseError if there is none.
    """
    if not isinstance(name, str):
        raise MalformedCaseError(f"{of}: got {name!r}; allowed: the name of a tensor")
    beside = case.file.with_name(f"{case.file.stem.removesuffix('_cases')}_{of}.safetensors")
    others = sorted(path for path in case.file.parent.glob(f"*_{of}.safetensors") if path != beside)
    for path in [beside, *others]:
        tensor = _read_tensor(path, name)
        if tensor is not None:
            return tensor
    raise MalformedCaseError(f"no tensor {name!r} in {beside}; copy the recorded tensors ({of}) there")


def _read_tensor(path: Path, name: str) -> Tensor | None:
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as tensors:
            if name not in tensors.keys():  # noqa: SIM118 - the handle is no mapping
                return None
            tensor: Tensor = tensors.get_tensor(name)
            return tensor
    except (SafetensorError, OSError) as error:
        raise MalformedCaseError(f"cannot read {path}: {error}") from None
