"""A call of all groups of a model: what is answered when it fails in some of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from cluster.serving.protocol.group import Group
from cluster.serving.replica.ingress import Ingress
from lopa_ray.errors import CheckpointError, ClusterError, SettingsError


class Groups:
    """A deployment whose replicas answer with these results."""

    def __init__(self, *results: object) -> None:
        self.results = results

    def broadcast(self, method: str, *arguments: object) -> Groups:
        assert (method, arguments) == ("control", ("pause", {}))
        return self

    async def results_async(self, **_: Any) -> tuple[object, ...]:
        return self.results


def ask(*results: object) -> list[Any]:
    ingress = Ingress(demo=Groups(*results))
    return asyncio.run(ingress.ask_all("demo", Group.control, "pause", {}))


def test_errors_of_some_groups_name_them() -> None:
    assert ask("one", "two") == ["one", "two"]
    wrong = SettingsError("version: got 3, and the weights have version 3", setting="version")
    for lost, reason in ((wrong, "version: got 3"), (ActorDiedError(), "the group was lost")):
        with pytest.raises(ClusterError, match=rf"'demo' failed: 2 of 3 \({reason}[^)]*\); ask again"):
            ask("one", lost, "three")
    with pytest.raises(ClusterError, match=r"1 of 3 \(gone\); 3 of 3 \(far\)"):
        ask(ClusterError("gone"), "two", ClusterError("far"))


@pytest.mark.parametrize("error", [CheckpointError("no such tensor"), ClusterError("gone")])
def test_an_error_of_all_groups_is_theirs(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        ask(error, error)
