"""What importing the project brings along, and what it must do without."""

from __future__ import annotations

import base64
import pickle
import subprocess
import sys

import pytest

from lopa_ray.engine.config import Config
from lopa_ray.engine.open_model import open_model
from support.paths import ROOT

pytestmark = pytest.mark.medium

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
        # Only CUDA imports the former, and it has Triton; the others are for those who have the harness.
        if not module.name.startswith(("lopa_ray.kernels.triton.", "lopa_lab.evaluation", "lopa_lab.paper")):
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


def run(code: str, stdin: str = "") -> None:
    """Run code in a fresh interpreter at the root of the checkout."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_module_imports_without_the_extras() -> None:
    packages = ["lopa_ray", "actors", "cluster", "lopa_lab"]
    run(BLOCK.format(names=EXTRAS) + IMPORT_ALL.format(packages=packages))


def test_the_decoder_imports_without_ray() -> None:
    blocked = {"ray", "typer", "rich"}
    run(BLOCK.format(names=blocked) + IMPORT_ALL.format(packages=["lopa_ray"]))


def test_what_decides_imports_without_torch() -> None:
    packages = [
        f"lopa_ray.{name}" for name in ("config", "constraints", "decoding", "protocol", "scheduling")
    ]
    run(BLOCK.format(names={"torch", "transformers"}) + IMPORT_ALL.format(packages=packages))


def test_decoding_imports_no_compiler() -> None:
    """torch's takes two seconds to import, in every process of a group."""
    run(
        "import sys; from lopa_ray import LocalEngine\n"
        "LocalEngine.from_pretrained('demo').generate('A test')\n"
        "assert not {'torch._dynamo', 'torch._inductor'} & set(sys.modules)"
    )


def test_help_and_the_package_itself_import_nothing_large() -> None:
    run(
        "import sys, lopa_ray, actors, cluster.jobs\n"
        "assert not {'torch', 'ray', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "from typer.testing import CliRunner\n"
        "from cluster.cli import app\n"
        "for command in ([], ['generate'], ['serve']):\n"
        "    assert CliRunner().invoke(app, [*command, '--help']).exit_code == 0\n"
        "found = {'torch', 'ray', 'transformers', 'huggingface_hub', 'tokenizers'} & set(sys.modules)\n"
        "assert not found, found"
    )


def test_engines_and_masters_of_groups_start_without_torch() -> None:
    """Torch takes longer to import than a group to start. Only the store of a master needs it, and workers."""
    run(
        "import sys\n"
        "from actors import AsyncRayEngine, RayEngine\n"
        "from actors.group.master import Master\n"
        "from cluster.serving.replica.group_server import GroupServer\n"
        "from lopa_ray.engine.config import Config\n"
        "from lopa_ray.engine.open_model import open_model\n"
        "open_model(Config.load('demo'))\n"
        "found = {'torch', 'safetensors'} & set(sys.modules)\n"
        "assert not found, found"
    )


def test_branch_workers_do_without_transformers_and_decoders() -> None:
    """The engine reads the tokenizer, and sends what workers need of it."""
    worker = (
        "import base64, pickle, sys\n"
        "from actors.workers.branch_worker import BranchWorker\n"
        "worker = BranchWorker(pickle.loads(base64.b64decode(sys.stdin.read())))\n"
        "worker.prepare()\n"
        "list(worker.read_weights()), worker.load_model(None)\n"
        "found = {'transformers', 'tokenizers', 'huggingface_hub', 'lopa_ray.decoding'} & set(sys.modules)\n"
        "assert not found, found"
    )
    _, spec, tokenizer = open_model(Config.load("demo"))
    assert tokenizer is not None and spec.model.unpadded_vocab_size is not None
    run(worker, stdin=base64.b64encode(pickle.dumps(spec)).decode())
