"""The files in cluster/deploy: Ray and Kubernetes accept them, and they agree with each other and with the project."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray
import yaml
from ray.serve.schema import ServeDeploySchema
from typer.main import get_command

from actors.connection.ray_connection import KILL_TIMEOUT_MS, KILL_TIMEOUT_VARIABLE
from cluster.cli.commands import app as lopa
from cluster.jobs.__main__ import app
from cluster.serving.http.serve_proxy import CALLBACK, CALLBACK_VARIABLE
from cluster.serving.launch import ServeLauncher
from cluster.serving.serve_environment import SERVE_ENVIRONMENT
from cluster.serving.settings import ServeSettings
from lopa_ray import __version__
from lopa_ray.engine.config import Config
from support.paths import DATA, ROOT

DEPLOY = ROOT / "cluster" / "deploy"
MANIFESTS = {"raycluster.yaml": "RayCluster", "rayjob.yaml": "RayJob", "rayservice.yaml": "RayService"}
DOCKERFILES = ["Dockerfile.cuda", "Dockerfile.ascend", "Dockerfile.cpu"]
BIN = Path(sys.executable).parent


def read(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def pinned(package: str) -> str:
    (version,) = re.findall(rf"^{package}==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return str(version)


def cluster_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """The RayCluster in a manifest."""
    spec = manifest["spec"]
    cluster: dict[str, Any] = spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec
    return cluster


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"] for group in groups]


def schema(kind: str, version: str) -> dict[str, Any]:
    """KubeRay's custom resource definition as JSON Schema: of a kind, as "RayJob", in a version of its API, as "v1"."""
    packed = DATA / "kuberay" / f"ray.io_{kind.lower()}s.yaml.gz"
    definition = yaml.load(gzip.decompress(packed.read_bytes()), Loader=yaml.CSafeLoader)
    (served,) = [served for served in definition["spec"]["versions"] if served["name"] == version]
    return strict(served["schema"]["openAPIV3Schema"])


def strict(node: Any) -> Any:
    """OpenAPI, as Kubernetes uses it, → JSON Schema that refuses fields which Kubernetes would drop."""
    if isinstance(node, list):
        return [strict(item) for item in node]
    if not isinstance(node, dict):
        return node
    # Under `properties` keys are names of fields, not words of the schema.
    refusing = {
        key: {name: strict(field) for name, field in value.items()} if key == "properties" else strict(value)
        for key, value in node.items()
        if not key.startswith("x-kubernetes-") and key != "nullable"
    }
    if "properties" in refusing and not node.get("x-kubernetes-preserve-unknown-fields"):
        refusing.setdefault("additionalProperties", False)
    if node.get("nullable") and "type" in refusing:
        refusing["type"] = [refusing["type"], "null"]
    return refusing


# Each by itself


@pytest.mark.medium
@pytest.mark.parametrize("name", MANIFESTS)
def test_manifests_are_what_kuberay_takes(name: str) -> None:
    manifest = read(name)
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", MANIFESTS[name])
    validator = jsonschema.Draft202012Validator(schema(manifest["kind"], "v1"))
    validator.validate(manifest)


@pytest.mark.parametrize("name", MANIFESTS)
def test_mounted_volumes_exist_and_requests_are_limits(name: str) -> None:
    for pod in pods(cluster_of(read(name))):
        (container,) = pod["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in pod["volumes"]
        }
        # Ray takes a node's CPUs and memory from the limits.
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_service_is_what_serve_and_this_project_take() -> None:
    values = yaml.safe_load(read("rayservice.yaml")["spec"]["serveConfigV2"])
    (application,) = ServeDeploySchema(**values).applications
    settings = ServeSettings(**application.args)
    names = {"ingress", *(entry.deployment for entry in settings.models)}
    assert {deployment.name for deployment in application.deployments} == names
    for entry in settings.models:
        assert isinstance(entry.load(), Config)
    (pod,) = pods(cluster_of(read("rayservice.yaml")))[1:]
    mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    assert str(Path(str(settings.api_keys_file)).parent) in mounts


def test_the_cluster_launcher_takes_its_file() -> None:
    folder = Path(ray.__file__).parent / "autoscaler"
    values = read("cluster-launcher.yaml")
    jsonschema.validate(values, json.loads((folder / "ray-schema.json").read_text()))


def test_the_slurm_script_runs_a_job_on_all_nodes(tmp_path: Path) -> None:
    """With stand-ins for Slurm's commands, which say what they were called with."""
    script = str(DEPLOY / "slurm.sh")
    subprocess.run([BIN / "shellcheck", script], check=True)
    for name, body in {
        "scontrol": 'printf "first\\nsecond\\n"',
        "srun": 'printf "%s\\n" "$RAY_ADDRESS $RAY_AUTH_MODE $RAY_AUTH_TOKEN" "$@"',
        "ray": '[ "$*" = "get-auth-token --generate" ] && echo secret',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "4021"}
    arguments = ["--input", "/data/in file.jsonl", "--output", "/data/out.jsonl"]
    done = subprocess.run(
        [script, *arguments],
        env={**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
    )
    words = done.stdout.splitlines()
    assert words[0] == "first:6400 token secret"
    assert words[2:4] == ["ray", "symmetric-run"]
    assert words[4:8] == ["--address", "first:6400", "--min-nodes", "2"]
    assert words[8:] == ["--", "python", "-m", "cluster.jobs", *arguments]
    directives = re.findall(r"^#SBATCH --([a-z-]+)", Path(script).read_text(), re.MULTILINE)
    assert {"nodes", "ntasks-per-node", "exclusive"} <= set(directives)


def test_clusters_ask_for_a_token() -> None:
    """Set, and not left to Ray: a head would ask for one if it found one, and other nodes would not show theirs."""
    for name in MANIFESTS:
        assert cluster_of(read(name))["authOptions"] == {"mode": "token"}
    launcher = read("cluster-launcher.yaml")
    assert "--env=RAY_AUTH_MODE=token" in launcher["docker"]["run_options"]
    # The home folder of the images' user.
    assert launcher["file_mounts"] == {"/home/ray/.ray/auth_token": "~/.ray/auth_token"}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_dockerfiles_are_sound_and_copy_what_is_there(name: str) -> None:
    subprocess.run([BIN / "hadolint", DEPLOY / name], check=True)
    text = (DEPLOY / name).read_text()
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert all((ROOT / source).exists() for source in copied)
    # Whatever the package is built from has to be there.
    assert {
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "lopa_ray",
        "actors",
        "cluster",
        "lopa_lab",
        "configs",
    } <= set(copied)


# Together


def test_versions_are_those_that_are_tested() -> None:
    for name in MANIFESTS:
        assert cluster_of(read(name))["rayVersion"] == pinned("ray")
    (python,) = re.findall(r"Python (\S+)\)", (ROOT / "constraints.txt").read_text())
    cuda, ascend, cpu = ((DEPLOY / name).read_text() for name in DOCKERFILES)
    assert f"FROM python:{python}-slim" in cuda and f"FROM python:{python}-slim" in cpu
    assert f"-py{python}\n" in ascend and f"ARG TORCH={pinned('torch')}\n" in ascend
    for text in (cuda, ascend, cpu):
        assert "-c constraints.txt" in text


def test_images_are_those_that_the_dockerfiles_build() -> None:
    built = {
        image
        for name in DOCKERFILES
        for image in re.findall(r"docker build -f \S+ -t (\S+) \.", (DEPLOY / name).read_text())
    }
    assert built == {f"REGISTRY/lopa-ray:{__version__}-{kind}" for kind in ("cuda", "ascend", "cpu")}
    used = {
        container["image"]
        for name in MANIFESTS
        for pod in pods(cluster_of(read(name)))
        for container in pod["containers"]
    }
    used.add(read("cluster-launcher.yaml")["docker"]["image"])
    used.add(read("compose.yaml")["services"]["lopa"]["image"])
    assert used <= built


def test_ports_agree() -> None:
    named = [
        {
            port["name"]: port["containerPort"]
            for port in pods(cluster_of(read(name)))[0]["containers"][0]["ports"]
        }
        for name in MANIFESTS
    ]
    assert named[0] == named[1] == named[2]
    service = yaml.safe_load(read("rayservice.yaml")["spec"]["serveConfigV2"])
    assert service["http_options"]["port"] == named[0]["serve"]
    (start,) = [line for line in read("cluster-launcher.yaml")["head_start_ray_commands"] if "--head" in line]
    assert f"--port={named[0]['gcs-server']} " in start
    assert f"--dashboard-port={named[0]['dashboard']} " in start


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_bound_headers(name: str) -> None:
    """`lopa serve` sets the variable itself; `serve deploy` takes the nodes' environment."""
    assert f"{CALLBACK_VARIABLE}={CALLBACK} " in (DEPLOY / name).read_text()


def test_the_cpu_image_serves_and_says_when_it_is_well() -> None:
    """Its commands as Docker reads them: `CMD` alone is the server, that of `HEALTHCHECK` asks for a route."""
    text = (DEPLOY / "Dockerfile.cpu").read_text()
    health, start = (json.loads(words) for words in re.findall(r"CMD (\[.*\])$", text, re.MULTILINE))
    (port,) = re.findall(r"^EXPOSE (\d+)$", text, re.MULTILINE)
    served = get_command(lopa).commands[start[1]].make_context("serve", start[2:]).params
    assert start[:2] == ["lopa", "serve"] and served["host"] == "0.0.0.0"
    assert int(port) == ServeLauncher(None).port
    assert health[0] == "wget" and health[-1] == f"http://127.0.0.1:{port}/health"
    assert re.search("install .* wget", text)


# Compose, Prometheus and Grafana


def test_what_they_run_exists_and_takes_these_arguments() -> None:
    service = yaml.safe_load(read("rayservice.yaml")["spec"]["serveConfigV2"])
    module, _, name = service["applications"][0]["import_path"].partition(":")
    assert hasattr(importlib.import_module(module), name)
    words = shlex.split(read("rayjob.yaml")["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", "cluster.jobs"] and importlib.util.find_spec("cluster.jobs.__main__")
    arguments = get_command(app).make_context("job", words[3:]).params
    assert Path(arguments["output"]).is_absolute()
    for name in MANIFESTS:
        for path in re.findall(r"(/models)/\S+", (DEPLOY / name).read_text()):
            for pod in pods(cluster_of(read(name))):
                assert path in [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]


@pytest.mark.parametrize(("name", "groups"), [("rayjob.yaml", 8), ("rayservice.yaml", 1)])
def test_groups_have_the_gpus_that_they_need(name: str, groups: int) -> None:
    manifest = read(name)
    if name == "rayjob.yaml":
        arguments = (
            get_command(app).make_context("job", shlex.split(manifest["spec"]["entrypoint"])[3:]).params
        )
        number, config, workers = arguments["groups"], arguments["config"], arguments["workers"]
    else:
        (application,) = yaml.safe_load(manifest["spec"]["serveConfigV2"])["applications"]
        (entry,) = application["args"]["models"]
        config, workers = entry["config"], entry["group"]["num_workers"]
        replicas = {one["name"]: one["num_replicas"] for one in application["deployments"]}
        number = replicas[entry["id"]]
    loaded = Config.load(config, {"group": {"num_workers": workers}})
    nodes = cluster_of(manifest)["workerGroupSpecs"]
    limits = [node["template"]["spec"]["containers"][0]["resources"]["limits"] for node in nodes]
    gpus = sum(
        int(limit["nvidia.com/gpu"]) * node["replicas"] for limit, node in zip(limits, nodes, strict=True)
    )
    cpus = sum(int(limit["cpu"]) * node["replicas"] for limit, node in zip(limits, nodes, strict=True))
    assert loaded.model.device == "cuda" and number == groups
    assert number * workers * loaded.group.num_accelerators == gpus
    assert number * workers * loaded.group.num_cpus <= cpus - 2


def test_all_pods_of_a_service_notice_losses_as_a_local_server_does() -> None:
    expected = {**SERVE_ENVIRONMENT, KILL_TIMEOUT_VARIABLE: KILL_TIMEOUT_MS}
    for pod in pods(cluster_of(read("rayservice.yaml"))):
        assert {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]} == expected
