"""CollectiveHandle: an actor's connection to the others of a collective group, in one epoch after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ray.util import collective
from ray.util.collective.types import Backend

from actors.transfer.collective_backend import BACKEND, register_backend
from actors.transfer.rendezvous import Rendezvous
from lopa_ray.errors import TransferError


class CollectiveHandle:
    """Holds at most one group at a time. A group that fails is dropped: on Gloo that breaks the connections of its
    other members; on NCCL they poll, and see that their master has given the epoch up."""

    def __init__(self) -> None:
        register_backend()
        self._rendezvous: Rendezvous | None = None

    def join(self, rendezvous: Rendezvous) -> None:
        """Build the epoch's group, together with all its members. Raises TransferError if a peer does not come."""
        self.leave()
        if rendezvous.world_size > 1:
            try:
                collective.init_collective_group(
                    rendezvous.world_size, rendezvous.rank, Backend(BACKEND), rendezvous.group_name
                )
            except RuntimeError as error:
                raise TransferError(f"epoch {rendezvous.epoch} was not formed: {error}") from None
            self._rendezvous = rendezvous

    def leave(self) -> None:
        rendezvous, self._rendezvous = self._rendezvous, None
        if rendezvous is not None:
            collective.destroy_collective_group(rendezvous.group_name)

    def synchronize(self, failed: str) -> None:
        """See `ProcessGroup.wait`. Raises TransferError that begins with `failed`."""
        with self.group(failed) as group:
            collective.get_group_handle(group).wait()

    @contextmanager
    def group(self, failed: str) -> Iterator[str]:
        """The name of the group for Ray's collective interface. Raises TransferError if this worker has left its group,
        and one that begins with `failed` if a collective call within the block fails."""
        if self._rendezvous is None:
            raise TransferError("this worker has left its group, and no new one has been joined")
        try:
            yield self._rendezvous.group_name
        except RuntimeError as error:
            self.leave()
            raise TransferError(f"{failed}: {error}") from None
