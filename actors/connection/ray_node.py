"""RayNode: the node of a Ray cluster that this process is on."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Self

import ray

from lopa_ray.errors import ClusterError

CHECK_S = 1.0  # interval of the check that the node is alive, for callers that wait

_CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class RayNode:
    """The address of the node's raylet: the process of Ray that starts all others on the node, and whose end ends them.
    A driver outlives its raylet; Ray does not tell it, and its calls then wait forever."""

    address: str
    port: int

    @classmethod
    def of_this_process(cls) -> Self:
        node_id = ray.get_runtime_context().get_node_id()
        (node,) = [node for node in ray.nodes() if node["NodeID"] == node_id]
        return cls(node["NodeManagerAddress"], node["NodeManagerPort"])

    @property
    def alive(self) -> bool:
        """Whether the raylet listens. Asks neither Ray nor the head, which may have ended too."""
        try:
            with socket.create_connection((self.address, self.port), _CONNECT_TIMEOUT_S):
                return True
        except TimeoutError:
            return True  # a process that has ended refuses at once
        except OSError:
            return False

    def check(self) -> None:
        """Raises ClusterError if Ray on this node has ended."""
        if not self.alive:
            raise ClusterError(
                "Ray on this node has ended, and with it all that ran there (raylet.out, raylet.err and "
                "dashboard_agent.log, by default in /tmp/ray/session_latest/logs, may say why); start again"
            )
