"""Jobs, `serve deploy`, `lopa generate` and `lopa serve` on a head with Ray's own defaults: on a machine that has a
token the head asks for it, on one that has none it does not. RAY_AUTH_MODE is set only as docs/cluster.md says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from support.client_request import check_answer, local_engine
from support.paths import BIN, ROOT
from support.ports import free_port
from support.processes import subprocess_environment
from support.ray_nodes import TOKEN_MODE, RayHead, run_head
from support.server_process import answers, lopa_serve, shipped_config
from support.waiting import wait_until

# Two heads with their dashboards take minutes; `.ci/run` has them.
pytestmark = pytest.mark.slow

PROBLEM = "Ben has 7 pens. Zoe has 4 times as many pens as Ben. How many pens do they have together?"

GROUP = ["--workers=1", "--set=group.num_cpus=0.5"]

TIMEOUT_S = 180.0


@dataclass
class Machine:
    """A machine with a head on it. `environment` is what a user has there who has set nothing."""

    head: RayHead
    environment: dict[str, str]
    token_mode: dict[str, str]
    """What the documentation has users of Ray's own commands set."""

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """A command of the Python environment's; `environment` is set in addition."""
        return subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=ROOT,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def end(process: subprocess.Popen[str]) -> str:
    """What it has printed to stdout. It must succeed."""
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 0, out + err
    return out


def environment_at(home: Path) -> dict[str, str]:
    """The environment of a user whose home folder that is."""
    home.mkdir(exist_ok=True)
    inherited = {
        name: value for name, value in subprocess_environment().items() if not name.startswith("RAY_AUTH_")
    }
    return {**inherited, "HOME": str(home)}


@pytest.fixture(scope="module", params=[pytest.param("token", marks=pytest.mark.nightly), "no token"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
    environment = environment_at(folder / "home")
    if request.param == "token":
        subprocess.run([BIN / "ray", "get-auth-token", "--generate"], env=environment, check=True)
    options = "--num-cpus=4 --object-store-memory=150000000 --include-dashboard=true"
    with run_head(folder, options, environment=environment) as head:
        mode = httpx.get(f"{head.dashboard}/api/authentication_mode").json()["authentication_mode"]
        assert mode == ("token" if request.param == "token" else "disabled")
        yield Machine(head, environment, TOKEN_MODE if request.param == "token" else {})


@pytest.mark.nightly
@pytest.mark.timeout(4 * TIMEOUT_S)
def test_a_job_a_deployment_and_lopa_generate(machine: Machine, tmp_path: Path) -> None:
    """All at once, since most of the time they wait for Ray to start processes."""
    port = free_port()
    address = ["--address", machine.head.dashboard]
    config = str(shipped_config(tmp_path, port))
    deploy = machine.start("serve", "deploy", config, *address, **machine.token_mode)
    prompts, results = tmp_path / "prompts.jsonl", tmp_path / "results.jsonl"
    prompts.write_text(json.dumps({"prompt": PROBLEM}))
    job = [sys.executable, "-m", "cluster.jobs", f"--input={prompts}", f"--output={results}", *GROUP]
    submit = machine.start(
        "ray", "job", "submit", *address, "--working-dir=.", "--", *job, **machine.token_mode
    )
    generate = machine.start("lopa", "generate", *GROUP, "--json", PROBLEM, RAY_ADDRESS=machine.head.address)
    assert "#### 35" in json.loads(end(generate))["text"]
    end(submit)
    assert "#### 35" in json.loads(results.read_text())["text"]
    end(deploy)
    url = f"http://127.0.0.1:{port}"
    wait_until(lambda: answers(url), "the deployment", TIMEOUT_S)
    check_answer(url, local_engine({}))


@pytest.mark.timeout(3 * TIMEOUT_S)
@pytest.mark.nightly
def test_lopa_serve(machine: Machine, tmp_path: Path) -> None:
    # The deployment of the test before has the same name.
    end(
        machine.start("serve", "shutdown", "--yes", "--address", machine.head.dashboard, **machine.token_mode)
    )
    environment = {**machine.environment, "RAY_ADDRESS": machine.head.address}
    with lopa_serve(tmp_path / "output", environment) as url:
        check_answer(url, local_engine({}))


def test_a_client_that_the_cluster_refuses_is_told_what_to_set(machine: Machine, tmp_path: Path) -> None:
    """One without a token at a head with one, and the other way round."""
    other = {"HOME": str(tmp_path)}
    if not machine.token_mode:
        other |= {**TOKEN_MODE, "RAY_AUTH_TOKEN": "a token of another cluster"}
    refused = machine.start("lopa", "generate", PROBLEM, RAY_ADDRESS=machine.head.address, **other)
    _, err = refused.communicate(timeout=TIMEOUT_S)
    assert refused.returncode == 1 and "RAY_AUTH_MODE=token" in err
    verdict = "requires a token" if machine.token_mode else "uses no tokens"
    assert err.splitlines()[-1].startswith(f"Error: Ray at '{machine.head.address}' {verdict}, "), err
