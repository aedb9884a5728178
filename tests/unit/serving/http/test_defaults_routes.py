"""What requests get that set nothing, over HTTP."""

from __future__ import annotations

import httpx
import pytest

from cluster.serving.protocol.messages import ModelDefaults
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.errors import ClusterError
from support.fake_backend import MODEL, OTHER_MODEL, Server, error_of


def test_defaults_of_every_decoder(client: httpx.Client) -> None:
    defaults = ModelDefaults.model_validate(client.get(f"/models/{MODEL}/defaults").json())
    assert (defaults.model, defaults.decoder) == (MODEL, "lopa")
    assert [*defaults.settings, *defaults.refused] == list(DECODERS)
    assert defaults.settings["block_diffusion"]["block_size"] == 4
    assert "num_branches" not in defaults.settings["d2f"]


@pytest.mark.parametrize("name", [OTHER_MODEL, OTHER_MODEL.replace("/", "%2F")])
def test_names_may_have_slashes(client: httpx.Client, name: str) -> None:
    assert client.get(f"/models/{name}/defaults").json()["model"] == OTHER_MODEL


def test_what_is_refused(server: Server, client: httpx.Client) -> None:
    assert error_of(client.get("/models/nothing/defaults"), 404).code == "model_not_found"
    server.backend.status_error = ClusterError("no worker is left")
    assert error_of(client.get(f"/models/{MODEL}/defaults"), 503).message == "no worker is left"
