"""What requests get that set nothing, and the playground that shows it, through a real server."""

from __future__ import annotations

import httpx
import pytest

from lopa_ray.engine.local import LocalEngine
from support.server_process import ServerProcess


@pytest.mark.parametrize("model", ["demo", "demo-d2f"])
def test_defaults_are_those_of_the_models_engine(
    client: httpx.Client, engines: dict[str, LocalEngine], model: str
) -> None:
    defaults = client.get(f"/models/{model}/defaults").raise_for_status().json()
    config = engines[model].config
    assert defaults["decoder"] == config.decode.decoder
    assert defaults["settings"][config.decode.decoder] == config.decode.model_dump(
        mode="json", exclude={"decoder"}
    )
    assert defaults["max_model_len"] == config.model.max_model_len
    assert defaults["is_demo_model"] is True


def test_the_playground_needs_no_key_and_its_defaults_do(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, timeout=30) as stranger:
        for path in ("/", "/playground/main.js", "/playground/examples.json"):
            assert stranger.get(path).status_code == 200
        assert stranger.get("/models/demo/defaults").status_code == 401
