"""What `lopa serve` refuses before it starts anything."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray.exceptions import RayTaskError
from typer.testing import CliRunner

from cluster.cli import app
from cluster.serving import launch
from cluster.serving.launch import _with_dtype
from cluster.serving.settings import ModelEntry
from lopa_ray.config.yaml_files import serve_config
from lopa_ray.engine.config import Config
from lopa_ray.errors import ClusterError

# The warning is Ray Serve's own, when it is imported.
pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore:Using extra keyword arguments")]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster, no keys; and whatever starts a Ray fails."""
    for name in ("RAY_ADDRESS", "LOPA_API_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("this was to be refused before Ray starts"))


def refused(*arguments: str, status: int = 2) -> str:
    """The one line that a refusal writes."""
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line.removeprefix("Error: ")


def file(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> str:
    """The config that ships, with a change."""
    values = yaml.safe_load(serve_config().read_text())
    change(values)
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(values))
    return str(path)


def application(values: dict[str, Any]) -> dict[str, Any]:
    first: dict[str, Any] = values["applications"][0]
    return first


WRONG_FILES: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (
        lambda v: v["http_options"].update(prot=1),
        "unknown key 'prot' in http_options; allowed: host",
    ),
    (lambda v: v["http_options"].update(port="x"), "http_options.port: got 'x'; Input should be"),
    (lambda v: v["http_options"].update(port=99999), "http_options.port: got 99999; allowed: 1 to 65535"),
    (lambda v: v.pop("applications"), "applications: got"),
    (lambda v: application(v).update(import_path="a:b"), r"got applications \['a:b'\]; allowed here: one"),
    (lambda v: application(v)["deployments"][1].update(num_replica=2), "'num_replica' in .*deployments.1"),
    (lambda v: application(v)["deployments"][1].update(num_replicas=-1), "num_replicas.*: got -1; Input"),
    (lambda v: application(v)["deployments"][1].update(name="demoo"), "got 'demoo'; allowed: ingress, demo"),
    (lambda v: application(v)["args"].update(modles=[]), "unknown setting modles = .*did you mean models"),
    (
        lambda v: application(v)["args"]["http"].update(max_stop=9),
        "max_stop = 9 .*it is gone: a request has at most 64",
    ),
    (lambda v: application(v)["args"]["http"].update(api_keys=["k"]), "keys are not allowed in a Serve"),
    (lambda v: application(v)["args"]["http"].update(admin_keys=["k"]), "keys are not allowed in a Serve"),
    (lambda v: application(v)["args"]["models"].append({"id": "demo"}), "two with the id 'demo'"),
    (lambda v: application(v)["args"]["models"][0].update(config="no.yaml"), "no configuration 'no.yaml'"),
]


@pytest.mark.parametrize(("change", "message"), WRONG_FILES)
def test_wrong_values_in_a_serve_config(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    assert re.search(message, refused("--config", file(tmp_path, change)))


@pytest.mark.parametrize("option", ["--api-keys", "--admin-keys"])
def test_files_without_a_key_open_nothing(tmp_path: Path, option: str) -> None:
    empty = tmp_path / "keys"
    empty.write_text("# later\n")
    assert "has no key" in refused(option, str(empty))
    for none in (str(tmp_path / "nothing"), ""):
        assert "cannot read the file of API keys" in refused(option, none)


def test_each_key_has_its_file(tmp_path: Path) -> None:
    files = {f"{name}_keys_file": tmp_path / name for name in ("api", "admin")}
    for path in files.values():
        path.write_text(f"key-of-{path.name}")
    launcher = launch.ServeLauncher(None)
    key_files = {name: str(path) for name, path in files.items()}
    launcher.apply_options(host=None, port=None, key_files=key_files, model=None, replicas=None, sections={})
    http = launcher.settings.http_with_keys({"LOPA_API_KEYS": "another"})
    assert [key.get_secret_value() for key in http.api_keys] == ["key-of-api", "another"]
    assert [key.get_secret_value() for key in http.admin_keys] == ["key-of-admin"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "line 1: not YAML"),
        ("- 1", "got list; allowed: a mapping"),
        ("modle: {}", "did you mean model?"),
    ],
)
def test_files_that_are_no_serve_config(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text(text)
    assert message in refused("--config", str(path))


def test_a_serve_config_that_is_not_there() -> None:
    assert refused("--config", "no.yaml").startswith(
        "no configuration 'no.yaml'; give a YAML file or a preset"
    )
    assert refused("--config", "llada2.1-mini").endswith("did you mean models/llada2.1-mini?")


@pytest.mark.parametrize("source", ["d2f-dream-7b", "models/llada2.1-mini", "own.yaml"])
def test_a_preset_or_a_file_of_generate_is_served_with_its_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("decode: {decoder: vanilla, steps: 8}\n")
    launcher = launch.ServeLauncher(source)
    sections = {"group": {"num_workers": 3}}
    launcher.apply_options(host=None, port=None, key_files={}, model=None, replicas=2, sections=sections)
    (entry,) = launcher.settings.models
    assert entry.id == source.rpartition("/")[2].removesuffix(".yaml")
    assert launcher.deployments[entry.deployment]["num_replicas"] == 2
    loaded, own = entry.load(), Config.load(source)
    assert loaded.group.num_workers == 3 and (loaded.model, loaded.decode) == (own.model, own.decode)


def test_wrong_options() -> None:
    assert "no such folder" in refused("--model", "nowhere")
    assert "num_workers: got 0" in refused("--workers", "0")
    assert "got 3 for a model with 4 heads" in refused("--tensor-parallel-size", "3")
    assert "num_branches: got 0" in refused("--set", "decode.num_branches=0")
    assert "unknown section 'foo'" in refused("--set", "foo.bar=0")


def test_keys_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    assert "cannot read the file of API keys" in refused("--api-keys", str(keys))
    keys.write_text("# none yet\n")
    assert "has no key" in refused("--api-keys", str(keys))
    keys.write_text("two words\n")
    line = refused("--api-keys", str(keys))
    assert "key 0 is not valid" in line and "words" not in line
    monkeypatch.setenv("LOPA_API_KEYS", ", ")
    assert "LOPA_API_KEYS has no key" in refused()


def test_keys_that_would_not_reach_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOPA_API_KEYS", "sesame")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    line = refused()
    assert "does not reach the cluster" in line and "sesame" not in line


@pytest.mark.parametrize("host", ["0.0.0.0", "::1"])
def test_a_port_that_is_taken_is_said_before_weights_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(launch, "download_weights", lambda _: pytest.fail("the port comes first"))
    family = socket.AF_INET6 if host == "::1" else socket.AF_INET
    with socket.create_server(("::1" if host == "::1" else "127.0.0.1", 0), family=family) as listener:
        port = listener.getsockname()[1]
        line = refused("--host", host, "--port", str(port), status=1)
    named = f"[{host}]" if ":" in host else host
    assert line.startswith(f"cannot listen on {named}:{port} (Address already in use); stop the")


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "a" * 64])
def test_a_host_of_another_machine(host: str) -> None:
    line = refused("--host", host, status=1)
    assert line.startswith("cannot listen on ") and line.endswith(
        "; choose a --host that is a name or an address of this machine"
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError("Failed to bind to address '127.0.0.1:8000'."),
            "Failed to bind to address '127.0.0.1:8000'",
        ),
        (TimeoutError("HTTP proxies not available after 60s."), "HTTP proxies not available after 60s"),
    ],
)
def test_a_serve_that_does_not_start_on_a_cluster(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    raised = (
        error
        if isinstance(error, TimeoutError)
        else RayTaskError("ready", "...", error).as_instanceof_cause()
    )

    def start(**_: Any) -> None:
        raise raised

    monkeypatch.setattr(launch.serve, "start", start)
    with pytest.raises(
        ClusterError, match=re.escape(f"did not start on port 8000 ({reason}); if another program")
    ):
        launch.ServeLauncher(None)._start_serve()


def test_serve_can_build_the_application() -> None:
    """`serve run` and `serve deploy` take builders with exactly one parameter."""
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as call

    from cluster.serving.app import build

    assert type(call(build, {"models": [{"id": "one"}, {"id": "two"}]})).__name__ == "Application"


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({}, "m (float32 on cpu)"),
        ({"pack_float32": True}, "m (float32 on cpu, packed weights)"),
        ({"device": "cuda"}, "m (bfloat16 on cuda)"),
        ({"device": "cuda", "dtype": "float32"}, "m (float32 on cuda)"),
    ],
)
def test_the_first_line_names_the_dtype_of_a_model(model: dict[str, Any], named: str) -> None:
    assert _with_dtype(ModelEntry(id="m", model=model)) == named


def test_another_decoder_drops_what_the_file_sets_for_its_own() -> None:
    launcher = launch.ServeLauncher(None)
    sections = {"decode": {"decoder": "self_speculation", "max_new_tokens": 32}}
    launcher.apply_options(host=None, port=None, key_files={}, model=None, replicas=None, sections=sections)
    decode = launcher.settings.models[0].load().decode
    assert (decode.decoder, decode.max_new_tokens) == ("self_speculation", 32)
    assert decode.model_dump()["num_branches"] == 1
