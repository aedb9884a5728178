"""Rendezvous: where the actors of a collective group find each other."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """What an actor needs to join the others of a collective group, for one epoch."""

    epoch: int
    rank: int
    world_size: int
    store: tuple[str, int] | None
    """Host and port of the master's key-value store; None for one actor alone, which needs none."""
    collective: str
    """torch.distributed backend: gloo, nccl or hccl."""
    timeout_s: float
    """A peer that hangs shows after this long. Well below the master's deadline, so that workers which only wait for
    one that hangs are not taken for lost as well."""
    purpose: str = "kv"
    """Which of the groups of that epoch: kv, or that of the shards of one worker."""

    @property
    def group_name(self) -> str:
        """Carries the rendezvous: it is all that Ray hands to a backend beside rank and size."""
        assert self.store is not None
        host, port = self.store
        return f"lopa/{self.collective}/{host}/{port}/{self.epoch}/{self.timeout_s}/{self.purpose}"
