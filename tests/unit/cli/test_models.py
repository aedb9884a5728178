"""`lopa models`: the families, and what a checkpoint needs, from its configuration alone."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from cluster.cli import app
from cluster.cli.model_families import checkpoints_table, known_families
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.config.yaml_files import CONFIGS
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.model.families.native import FAMILIES
from lopa_ray.model.transformers_models.families import KNOWN_FAMILIES
from support.hub_client import use_hub
from support.hub_stand_in import HubStandIn
from support.paths import DATA, GOLDEN, MODELS, ROOT

pytestmark = pytest.mark.medium

SHAPES = ROOT / "lopa_lab" / "bench" / "shapes"
SDAR_4B = GOLDEN / "published" / "sdar-4b-chat"
PUBLISHED_CHECKPOINTS = [row for family in KNOWN_FAMILIES for row in family.checkpoints]
FAMILY_OF = {row.name: family.name for family in KNOWN_FAMILIES for row in family.checkpoints}


def models(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["models", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_families_are_listed_with_what_they_were_checked_against() -> None:
    rows = [json.loads(line) for line in models("--json").splitlines()]
    assert [row["family"] for row in rows][: len(FAMILIES)] == [family.name for family in FAMILIES]
    assert all(row["checked_against"] and row["checkpoints"] for row in rows)
    shown = models()
    assert all(row["family"] in shown for row in rows) and "mask_token_id" in shown


def test_a_word_lists_the_checkpoints_that_have_it() -> None:
    listed = [
        row for line in models("SDAR", "--json").splitlines() for row in json.loads(line)["checkpoints"]
    ]
    names = [row.name for row in PUBLISHED_CHECKPOINTS if "sdar" in f"{row.name} {row.preset}".lower()]
    assert [row["name"] for row in listed] == names
    shown = models("SDAR")
    assert all(name in shown for name in names) and "Dream-org" not in shown
    refused = CliRunner().invoke(app, ["models", "sadr"])
    assert refused.exit_code == 2 and "got 'sadr'; did you mean sdar? allowed: a folder" in refused.stderr
    assert models().startswith("To begin on a CPU: smollm2, ")


def rendered(columns: int) -> list[str]:
    """The lines of the table of checkpoints in a terminal of that width."""
    console = Console(width=columns, file=io.StringIO())
    with console.capture() as shown:
        console.print(checkpoints_table(known_families(), console.width))
    return [line.rstrip() for line in shown.get().splitlines()]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_published_checkpoints_are_listed_whole_in_terminals_of_any_width(columns: int) -> None:
    lines = rendered(columns)
    assert all(len(line) <= columns for line in lines)
    words = "".join("".join(lines).split())
    for row in PUBLISHED_CHECKPOINTS:
        if columns >= 80:
            assert any(row.name in line for line in lines)
        assert row.name in words
        assert row.preset is None or row.preset in words
    if columns < 80:
        assert all("".join(row.figures.split()) in words for row in PUBLISHED_CHECKPOINTS)


def test_a_pipe_gets_a_line_per_checkpoint() -> None:
    lines = [line.split() for line in models().splitlines()]
    listed = [row for line in models("--json").splitlines() for row in json.loads(line)["checkpoints"]]
    assert [row["name"] for row in listed] == [row.name for row in PUBLISHED_CHECKPOINTS]
    adapters = {row["name"]: row["adapter"] for row in listed}
    assert adapters["Dream-org/Dream-v0-Instruct-7B"] == "SJTU-Deng-Lab/D2F_Dream_Instruct_7B_Lora"
    assert adapters["GSAI-ML/LLaDA-1.5"] is None
    for row in PUBLISHED_CHECKPOINTS:
        weights = [f"{row.weights_gib:.1f}", "GiB"]
        adapter = adapters[row.name]
        given = [row.preset] * (row.preset is not None) + [adapter] * (adapter is not None)
        assert [row.name, *given, *weights, *row.figures.split()] in lines


def test_published_checkpoints_are_those_of_presets_and_of_the_page() -> None:
    names = {row.name for row in PUBLISHED_CHECKPOINTS}
    for preset in ("d2f-dream-7b", *(f"models/{path.stem}" for path in (CONFIGS / "models").glob("*.yaml"))):
        assert Config.load(preset).model.path in names
    page = (ROOT / "docs" / "models.md").read_text()
    for row in PUBLISHED_CHECKPOINTS:
        preset = f"`{row.preset}`" if row.preset else ""
        assert f"| `{row.name}` | {row.weights_gib:.1f} GiB | {preset} | {row.figures} |" in page
        assert row.preset is None or Config.load(row.preset).decode


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("Dream-org/Dream-v0-Instruct-7B", SHAPES / "dream-7b.json"),
        ("GSAI-ML/LLaDA-8B-Instruct", SHAPES / "llada-8b.json"),
        ("JetLM/SDAR-4B-Chat", SHAPES / "sdar-4b.json"),
        ("JetLM/SDAR-30B-A3B-Chat", SHAPES / "sdar-30b-a3b.json"),
        ("inclusionAI/LLaDA2.1-mini", SHAPES / "llada2.0-mini.json"),
        ("inclusionAI/LLaDA2.1-flash", SHAPES / "llada2.0-flash.json"),
        ("inclusionAI/LLaDA2.2-flash", SHAPES / "llada2.0-flash.json"),
        ("nvidia/Nemotron-Labs-Diffusion-8B", SHAPES / "nemotron-labs-diffusion-8b.json"),
        ("Efficient-Large-Model/Fast_dLLM_v2_1.5B", SHAPES / "fast-dllm-v2-1.5b.json"),
        ("google/diffusiongemma-26B-A4B-it", DATA / "diffusion_gemma_26b_config.json"),
    ],
)
def test_published_weights_are_those_of_the_shape(name: str, shape: Path, tmp_path: Path) -> None:
    (row,) = (row for row in PUBLISHED_CHECKPOINTS if row.name == name)
    shutil.copy(shape, tmp_path / "config.json")
    needs = json.loads(models(str(tmp_path), "--json", "--set", "model.dtype=bfloat16"))
    assert round(needs["formats"][0]["weights_bytes"] / 2**30, 1) == row.weights_gib
    assert needs["family"] == FAMILY_OF[name]


def test_needs_are_those_of_the_model_that_is_loaded() -> None:
    needs = json.loads(models(str(MODELS / "llada-tiny-3l"), "--json", "--set", "model.max_model_len=96"))
    with LocalEngine.from_pretrained(MODELS / "llada-tiny-3l", max_model_len=96, max_num_seqs=8) as engine:
        runner = engine.runner
        weights = sum(parameter.numel() * 4 for parameter in runner.model.parameters())
        assert needs["formats"][0] == {
            "dtype": "float32",
            "quantization": "none",
            "weights_bytes": weights,
            "kv_bytes_per_position": runner.position_bytes,
            "kv_bytes_per_request": 96 * runner.position_bytes,
            "total_bytes": weights + 8 * 96 * runner.position_bytes,
        }
    assert (needs["family"], needs["implementation"], needs["tensor_parallel_sizes"]) == (
        "llada",
        "native",
        [1, 2, 4],
    )


def test_published_shapes_and_other_implementations() -> None:
    native, other = (
        json.loads(models(str(SDAR_4B), "--json", "--set", f"model.implementation={name}"))
        for name in ("native", "transformers")
    )
    bfloat16 = native["formats"][1]
    index = json.loads((SDAR_4B / "model.safetensors.index.json").read_text())
    assert bfloat16["weights_bytes"] == index["metadata"]["total_size"]
    assert bfloat16["kv_bytes_per_position"] == 36 * 2 * 8 * 128 * 2
    assert other["formats"] == native["formats"][:2]  # int8 is native alone
    assert (other["implementation"], other["tensor_parallel_sizes"]) == ("transformers", [1])


def test_what_is_configured_comes_first() -> None:
    formats = [
        json.loads(models("demo", "--json", *(word for value in given for word in ("--set", value))))[
            "formats"
        ]
        for given in (
            ["model.dtype=float16"],
            ["model.quantization=w8"],
            ["model.dtype=bfloat16", "model.quantization=w8a8"],
            ["model.quantization=fp8"],
            ["model.dtype=auto"],
            ["model.device=cuda"],
        )
    ]
    shown = [[(row["dtype"], row["quantization"]) for row in rows] for rows in formats]
    assert shown == [
        [("float16", "none"), ("float32", "none"), ("bfloat16", "none"), ("bfloat16", "w8a8")],
        [("float32", "w8"), ("bfloat16", "w8")],
        [("bfloat16", "w8a8"), ("float32", "w8a8")],
        [("float32", "fp8"), ("float32", "none"), ("bfloat16", "none"), ("bfloat16", "w8a8")],
        [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "w8a8")],
        [("bfloat16", "none"), ("float32", "none"), ("bfloat16", "w8a8")],
    ]
    assert formats[1][0]["weights_bytes"] < formats[0][0]["weights_bytes"]


def test_a_name_on_the_hub_is_looked_up_without_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubStandIn() as hub:
        use_hub(monkeypatch, hub.url, tmp_path)
        commit = hub.repository("org/demo", DEMO_MODEL)
        shown = models("org/demo")
        assert f"org/demo@{commit}: family dream" in shown and "19.36 MiB" in shown
        assert hub.downloads()["config.json"] == 1 and not hub.downloads()["model.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nothing/of/this"], "no such folder"),
        (["./sdar-8b-chat"], "did you mean JetLM/SDAR-8B-Chat?"),
        (["demo", "--set", "model.max_model_len=0"], "max_model_len"),
        (["--set", "model.max_model_len=64"], "--set needs a checkpoint"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], part: str) -> None:
    result = CliRunner().invoke(app, ["models", *arguments])
    assert result.exit_code == 2 and part in result.stderr
