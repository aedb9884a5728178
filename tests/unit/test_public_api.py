"""The public API: the stubs list it, and all of it is there."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest

import actors
import cluster.jobs
import lopa_ray
from lopa_ray import errors
from lopa_ray.decoding.decoders import DECODERS


@pytest.mark.parametrize("package", [lopa_ray, actors, cluster.jobs], ids=lambda package: package.__name__)
def test_every_name_of_the_stub_is_there(package: ModuleType) -> None:
    stub = ast.parse(Path(str(package.__file__)).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    assert set(package.__all__) == {alias.name for node in imports for alias in node.names}
    for name in package.__all__:
        assert getattr(package, name) is not None and name in dir(package)


def test_every_error_and_the_settings_of_every_decoder_are_public() -> None:
    named = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert named | {decoder.settings.__name__ for decoder in DECODERS.values()} <= set(lopa_ray.__all__)


def test_what_is_not_there_is_an_import_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        lopa_ray.Nothing  # noqa: B018 - looking it up is what is tested
