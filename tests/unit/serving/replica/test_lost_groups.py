"""What the ingress makes of calls that a group does not answer: errors that name nothing of Ray's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError, WorkerCrashedError
from ray.serve.exceptions import DeploymentUnavailableError, RayServeException

from cluster.choices.messages import PromptToTokenize
from cluster.openai.errors import api_error
from cluster.serving.protocol.group import Group
from cluster.serving.replica.ingress import Ingress
from lopa_ray.errors import ClusterError

LOST = RayActorError(error_msg="class_name: ServeReplica, actor_id: secret, pid: 17, ip: 10.0.0.7")


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        ActorUnavailableError("secret", None),
        WorkerCrashedError(),
        RayTaskError("decide", "secret", LOST, pid=17, ip="10.0.0.7", actor_id="secret"),
        RayServeException("secret"),
        DeploymentUnavailableError(SimpleNamespace(name="secret", app_name="secret")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lost_group_is_unavailable(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def call(name: str, prompt: PromptToTokenize) -> None:
        raise error

    ingress = Ingress(demo=SimpleNamespace(call=SimpleNamespace(remote=call)))
    with pytest.raises(ClusterError) as caught:
        asyncio.run(ingress.ask("demo", Group.tokenize, PromptToTokenize("hi")))
    response = api_error(caught.value)
    assert (response.status, response.code, response.headers) == (503, "unavailable", {"Retry-After": "1"})
    assert response.message == "the group was lost and is being replaced; try again later"
    assert "secret" in caplog.text or type(error).__name__ in caplog.text
