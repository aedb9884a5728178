"""What importing the project brings along, and what it must do without."""

from __future__ import annotations

import subprocess
import sys

from support.paths import ROOT

EXTRAS = {
    *(
        "flash_attn",
        "httpx",
        "lm_eval",
        "matplotlib",
        "openai",
        "pandas",
        "playwright",
        "pyarrow",
        "schemathesis",
        "transformers",
    ),
    "torch_npu",
    "triton",
}

IMPORT_ALL = """
import importlib, pkgutil
for root in {packages}:
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if not module.name.startswith("lopa_ray.kernels.triton."):  # only CUDA imports these, and it has Triton
            importlib.import_module(module.name)
"""

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"{{name}} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
"""


def run(code: str) -> None:
    """Run code in a fresh interpreter at the root of the checkout."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_module_imports_without_the_extras() -> None:
    packages = ["lopa_ray", "actors", "cluster"]
    run(BLOCK.format(names=EXTRAS) + IMPORT_ALL.format(packages=packages))


def test_the_decoder_imports_without_ray() -> None:
    blocked = {"ray", "typer", "rich"}
    run(BLOCK.format(names=blocked) + IMPORT_ALL.format(packages=["lopa_ray"]))


def test_what_decides_imports_without_torch() -> None:
    packages = [
        f"lopa_ray.{name}" for name in ("config", "constraints", "decoding", "protocol", "scheduling")
    ]
    run(BLOCK.format(names={"torch"}) + IMPORT_ALL.format(packages=packages))


def test_decoding_natively_imports_neither_compiler_nor_transformers() -> None:
    """torch's takes two seconds to import, in every process of a group, and transformers at least as long."""
    run(
        "import sys; from lopa_ray import LocalEngine\n"
        "LocalEngine.from_pretrained('demo').generate('A test')\n"
        "assert not {'torch._dynamo', 'torch._inductor', 'transformers'} & set(sys.modules)"
    )
