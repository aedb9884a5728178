"""Names on the Hub: what is one, which commit it stands for, and which of its files are downloaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import hf_hub_download

from lopa_ray.errors import CheckpointError
from lopa_ray.model.hub.repository import HubName, download, pin
from lopa_ray.model.native_implementation import load_model
from support.checkpoints import edit_tensors
from support.hub_client import use_hub
from support.hub_stand_in import HubStandIn

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIGURATION = {
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "merges.txt",
}


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("org/model", HubName("org/model")),
        ("org/model@refs/pr/1", HubName("org/model", "refs/pr/1")),
        ("org/model@user@host", HubName("org/model", "user@host")),
        (f"org/model@{COMMIT}", HubName("org/model", COMMIT)),
    ],
)
def test_names_are_read_and_written(source: str, name: HubName) -> None:
    assert HubName.parse(source) == name
    assert str(name) == source
    assert name.is_pinned == (COMMIT in source)


@pytest.mark.parametrize(
    "source",
    [
        "demo",
        "/model",
        "./model",
        "../model",
        "~/model",
        "runs/org/model",
        "org/",
        "or--g/model",
        "org/model@",
        "org/model@refs//pr",
        "org/model@../../../etc",
        "org/model@a..b",
        "org/model@-main",
        "org/model@a b",
        "org/model\0",
    ],
)
def test_what_is_no_name_is_a_path(source: str, hub: HubStandIn) -> None:
    assert HubName.parse(source) is None
    assert pin(source) == source
    if not source.startswith("~"):
        assert download(source, weights=True) == Path(source)
    assert hub.log == []


def test_a_folder_wins_over_a_name(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert HubName.parse("org/model") is not None
    (tmp_path / "org" / "model").mkdir(parents=True)
    assert pin("org/model") == "org/model"
    assert download("org/model", weights=True) == Path("org/model")
    assert HubName.parse("org/model@main") is not None
    (tmp_path / "org" / "model@main").mkdir()
    assert download("org/model@main", weights=True) == Path("org/model@main")
    assert hub.log == []


def test_paths_need_not_exist_and_may_begin_at_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert download("~/model", weights=True) == tmp_path / "model"
    assert download("~an-unknown-user/model", weights=True) == Path("~an-unknown-user/model")
    with pytest.raises(CheckpointError, match="no such folder"):
        load_model(download(str(tmp_path / "model"), weights=True), dtype=torch.float32, device="cpu")


def test_a_name_is_pinned_to_the_commit_of_its_revision(hub: HubStandIn, published: Path) -> None:
    main = hub.repositories["org/model"].revisions["main"]
    tag = hub.repository("org/model", published, revision="v1.0")
    request = hub.repository("org/model", published, revision="refs/pr/1")
    assert len({main, tag, request}) == 3
    assert pin("org/model") == pin("org/model@main") == f"org/model@{main}"
    assert pin("org/model@v1.0") == f"org/model@{tag}"
    assert pin("org/model@refs/pr/1") == f"org/model@{request}"
    assert download("org/model@refs/pr/1", weights=False).name == request


def test_a_pinned_name_keeps_its_weights_when_the_branch_moves(hub: HubStandIn, published: Path) -> None:
    before, weights_before = pin("org/model"), (published / "model.safetensors").read_bytes()
    edit_tensors(published, **{"model/norm/weight": torch.zeros(64)})
    hub.repository("org/model", published)
    after, weights_after = pin("org/model"), (published / "model.safetensors").read_bytes()
    assert before != after
    for name, weights in ((before, weights_before), (after, weights_after), ("org/model", weights_after)):
        assert (download(name, weights=True) / "model.safetensors").read_bytes() == weights
    assert hub.downloads()["model.safetensors"] == 2


def test_only_what_is_loaded_is_downloaded(hub: HubStandIn, published: Path) -> None:
    folder = download("org/model", weights=True)
    assert names(folder) == CONFIGURATION | {"model.safetensors"}
    assert hub.downloads() == dict.fromkeys(names(folder), 1)
    for name in names(folder):
        assert (folder / name).read_bytes() == (published / name).read_bytes()


def test_weights_are_downloaded_when_they_are_asked_for(hub: HubStandIn) -> None:
    # Another program that downloads a single file does not list those of its commit.
    hf_hub_download("org/model", "config.json")
    folder = download("org/model", weights=False)
    assert names(folder) == CONFIGURATION
    hub.log.clear()
    assert download("org/model", weights=True) == folder
    assert hub.downloads() == {"model.safetensors": 1}
    assert names(folder) == CONFIGURATION | {"model.safetensors"}


def test_a_pinned_name_in_the_cache_needs_no_request(
    hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = pin("org/model")
    folder = download(name, weights=True)
    assert any("/api/agent-harnesses" in request.path for request in hub.log)
    # As in a process of another day, for which these statistics would be asked for once more.
    (tmp_path / "home" / ".agent_harnesses.json").unlink()
    use_hub(monkeypatch, hub.url, tmp_path / "home")
    hub.log.clear()
    assert download(name, weights=True) == download(name, weights=False) == folder
    assert hub.log == []
    with hub.unreachable():
        assert download(name, weights=True) == folder


def test_without_a_connection_a_branch_is_the_commit_that_it_was(hub: HubStandIn, published: Path) -> None:
    name, folder = pin("org/model"), download("org/model", weights=True)
    moved = hub.repository("org/model", published)
    with hub.unreachable():
        assert pin("org/model") == name
        assert download("org/model@main", weights=True) == folder
    hub.statuses[""] = 503
    assert pin("org/model") == name
    assert download("org/model", weights=True) == folder
    hub.statuses.clear()
    assert pin("org/model") == f"org/model@{moved}"


def test_offline_the_cache_is_all_there_is(
    hub: HubStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, folder = pin("org/model"), download("org/model", weights=True)
    use_hub(monkeypatch, hub.url, tmp_path / "home", offline=True)
    hub.log.clear()
    assert pin("org/model") == name
    assert download("org/model", weights=True) == download(name, weights=False) == folder
    assert hub.log == []


def test_pickled_weights_are_left_to_the_loader(hub: HubStandIn, published: Path) -> None:
    (published / "model.safetensors").unlink()
    hub.repository("org/pickled", published)
    folder = download("org/pickled", weights=True)
    assert json.loads((folder / "config.json").read_text())["architectures"]
    with pytest.raises(CheckpointError, match="weights are read from safetensors alone"):
        load_model(folder, dtype=torch.float32, device="cpu")
