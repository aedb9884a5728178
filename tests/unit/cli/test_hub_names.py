"""Models by their names on the Hub, from the command line and from Python."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cluster.cli import app
from cluster.serving.launch import ServeLauncher
from lopa_ray.config.model_settings import DEMO_MODEL
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CheckpointError
from lopa_ray.execution.model_files import checkpoint_folder, pin_model
from support.hub_client import use_hub
from support.hub_stand_in import HubStandIn
from support.paths import GOLDEN, MODELS

pytestmark = pytest.mark.medium

PROMPT = "Tom has 3 boxes with 4 pens in each box. How many pens does Tom have?"
ADAPTER = GOLDEN / "lora" / "dream-tiny-4l-r4"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubStandIn]:
    with HubStandIn() as started:
        use_hub(monkeypatch, started.url, tmp_path / "home")
        yield started


def generate(*options: str) -> Result:
    return CliRunner().invoke(app, ["generate", "--local", "-n", "32", *options, PROMPT])


def answer(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return result.stdout.partition("\ntokens ")[0]


def test_a_name_decodes_as_the_folder_does_also_without_a_connection(
    hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit = hub.repository("org/demo", DEMO_MODEL)
    expected = answer(generate())
    assert answer(generate("--model", "org/demo")) == expected
    hub.repository("org/demo", MODELS / "dream-tiny-2l")
    assert answer(generate("--model", f"org/demo@{commit}")) == expected
    hub.repository("org/demo", DEMO_MODEL)
    with hub.unreachable():
        assert answer(generate("--model", "org/demo@" + commit)) == expected
        use_hub(monkeypatch, hub.url, tmp_path / "home", offline=True)
        assert answer(generate("--model", "org/demo")) == expected


def test_adapters_have_names_too(hub: HubStandIn) -> None:
    hub.repository("org/model", MODELS / "dream-tiny-4l")
    adapter = hub.repository("org/adapter", ADAPTER, revision="refs/pr/1")
    named = LocalEngine.from_pretrained("org/model", lora="org/adapter@refs/pr/1", max_model_len=64)
    assert named.config.model.lora == f"org/adapter@{adapter}"
    local = LocalEngine.from_pretrained(MODELS / "dream-tiny-4l", lora=str(ADAPTER), max_model_len=64)
    settings = local.config.decode.replace(max_new_tokens=24)
    assert named.generate([5, 6], settings).token_ids == local.generate([5, 6], settings).token_ids


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--model", "org/nothing"], "org/nothing at revision main"),
        (["--model", "org/demo@v9"], "org/demo at revision v9: got RevisionNotFoundError"),
        (["--model", "org/demo", "--lora", "org/nothing"], "org/nothing at revision main"),
        (["--model", "./org/demo"], "no such folder"),
    ],
)
def test_a_wrong_name_is_an_error_that_says_what_to_do(
    hub: HubStandIn, options: list[str], part: str
) -> None:
    hub.repository("org/demo", DEMO_MODEL)
    result = generate(*options)
    assert result.exit_code == 2 and part in result.stderr and not result.stdout


def test_once_pinned_what_looks_like_a_name_is_a_path(hub: HubStandIn) -> None:
    """Workers have another current folder than the program that found a checkpoint in its own."""
    config = Config.parse({"model": {"path": "org/demo"}})
    assert checkpoint_folder(config.model) == Path("org/demo")
    commit = hub.repository("org/demo", DEMO_MODEL)
    pinned = pin_model(config)
    assert pinned.model.path == f"org/demo@{commit}" and pin_model(pinned) is pinned
    assert checkpoint_folder(pinned.model).name == commit


def launcher(model: str) -> ServeLauncher:
    unapplied = ServeLauncher(None)
    sections = {"model": {"path": model}}
    unapplied.apply_options(host=None, port=None, key_files={}, model=model, replicas=None, sections=sections)
    return unapplied


def test_a_server_checks_and_names_the_model_before_it_starts(hub: HubStandIn) -> None:
    hub.repository("org/demo", DEMO_MODEL)

    sound = launcher("org/demo@main")
    sound.validate()
    assert [entry["id"] for entry in sound.args["models"]] == ["org/demo"]
    assert hub.downloads()["model.safetensors"] == 1
    with pytest.raises(CheckpointError, match="org/nothing"):
        launcher("org/nothing").validate()


def test_variables_of_a_serve_config_count_when_its_names_are_looked_up(
    hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repository("org/private", DEMO_MODEL)
    hub.repositories["org/private"].readers = {"a-token"}
    monkeypatch.setenv("HF_TOKEN", "")
    unapplied = launcher("org/private")
    with pytest.raises(CheckpointError, match="HF_TOKEN"):
        unapplied.validate()
    unapplied.env_vars = {"HF_TOKEN": "a-token"}
    unapplied.validate()
    assert hub.downloads()["model.safetensors"] == 1
