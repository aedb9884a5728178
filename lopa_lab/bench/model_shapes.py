"""Models to measure: a checkpoint, or random weights in a published shape."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.errors import SettingsError

_FOLDER = Path(__file__).with_name("shapes")

SHAPES = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))
"""Published shapes, and one of 27 million parameters for CPUs."""


@contextmanager
def model_to_measure(
    model: str, shape: str | None = None, layers: int | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The model's name in tables, and the settings of `model` (of a configuration) that name the checkpoint, or random
    weights in a shape.

    `layers` cuts a shape down to so many. The folder of a shape is gone when the context ends; it has the tokenizer of
    the model in the package, so that prompts may be text and servers can serve it. Raises SettingsError.
    """
    if shape is None:
        if layers is not None:
            raise SettingsError("--layers needs --shape; the layers of a checkpoint cannot be changed")
        yield model, {"path": model}
        return
    if shape not in SHAPES:
        raise SettingsError(f"--shape: got {shape!r}; allowed: {', '.join(SHAPES)}")
    values = json.loads((_FOLDER / f"{shape}.json").read_text(encoding="utf-8"))
    if layers is not None:
        values |= {key: layers for key in ("num_hidden_layers", "n_layers") if key in values}
    with tempfile.TemporaryDirectory(prefix="lopa-bench-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(values), encoding="utf-8")
        for file in DEMO_MODEL.glob("*token*"):
            (Path(folder) / file.name).write_bytes(file.read_bytes())
        name = shape if layers is None else f"{shape}, {layers} layers"
        yield name, {"path": folder, "load_format": "dummy"}
