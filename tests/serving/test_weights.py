"""Weights of a running server: changed in all replicas of a model, paused, and asleep."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cluster.serving.http.server_models import ModelState
from lopa_ray.config.model_settings import DEMO_MODEL
from support.client_request import CHAT, ClientRequest, local_engine
from support.server_process import run_server
from support.waiting import wait_until

DEMO = {"id": "demo", "group": {"num_workers": 1, "num_cpus": 0.25}}
ADMIN = "key-of-an-operator"


def changed_weights(folder: Path) -> Path:
    shutil.copytree(DEMO_MODEL, folder)
    tensors = load_file(DEMO_MODEL / "model.safetensors")
    noise = torch.Generator().manual_seed(0)
    for name in sorted(tensors):
        tensors[name] += 0.03 * torch.randn(tensors[name].shape, generator=noise).to(tensors[name].dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.slow
def test_weights_of_all_replicas(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(ADMIN)
    other = changed_weights(tmp_path / "other")
    replicas = [{"name": "demo", "num_replicas": 2}]
    request = ClientRequest(settings={"max_new_tokens": 32, "ignore_eos": True})
    before = request.decode_locally(local_engine(DEMO))
    after = request.decode_locally(local_engine({**DEMO, "model": {"path": str(other)}}))
    assert before != after
    with (
        run_server(tmp_path, [DEMO], deployments=replicas, options=["--admin-keys", str(keys)]) as server,
        server.client() as client,
        ThreadPoolExecutor(8) as threads,
    ):

        def admin(method: str, path: str, **body: object) -> ModelState:
            headers = {"Authorization": f"Bearer {ADMIN}"}
            content = json.dumps(body).encode() if body else b""
            answer = client.request(method, f"/admin/{path}", headers=headers, content=content)
            assert answer.status_code == 200, answer.text
            return ModelState.model_validate(answer.json())

        def refusal(status: int, **body: object) -> str:
            answer = client.post(
                "/admin/update_weights", headers={"Authorization": f"Bearer {ADMIN}"}, json=body
            )
            assert answer.status_code == status, answer.text
            return str(answer.json()["error"]["message"])

        def ask(_: int) -> object:
            return request.send(client)

        def waiting_requests() -> float:
            lines = client.get("/metrics").text.splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("lopa_requests_waiting"))

        assert [group.weight_version for group in admin("GET", "weight_version").groups] == [0, 0]
        assert set(threads.map(ask, range(8))) == {before}
        assert client.post("/admin/pause").status_code == 401

        torn = shutil.copytree(other, tmp_path / "torn")
        tensors = load_file(torn / "model.safetensors")
        del tensors["model.norm.weight"]
        save_file(tensors, torn / "model.safetensors", metadata={"format": "pt"})
        assert "model.norm.weight" in refusal(400, source=str(torn))
        assert "/nothing" in refusal(400, source="/nothing")
        assert admin("GET", "weight_version").weight_version == 0

        state = admin("POST", "update_weights", source=str(other), running="keep")
        assert [group.weight_version for group in state.groups] == [1, 1]
        assert set(threads.map(ask, range(8))) == {after}
        assert "version" in refusal(400, source=str(other), version=1)

        assert admin("POST", "sleep", level=2).is_sleeping
        refused = client.post(CHAT, json=request.body())
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1", refused.text
        assert "sleeps" in refused.json()["error"]["message"]
        assert not admin("POST", "wake_up").is_sleeping
        assert request.send(client) == after

        assert admin("POST", "pause").is_paused
        waiting = threads.submit(ask, 0)
        wait_until(lambda: waiting_requests() == 1, "the request to stand in line")
        assert not waiting.done()
        assert not admin("POST", "resume").is_paused
        assert waiting.result() == after
        admin("POST", "reset_prefix_cache")
        server.interrupt()
