"""DMax as published, where its ends of blocks and of answers differ from the ends that users get."""

from __future__ import annotations

from typing import Any

from lopa_lab.conformance.row_settings import RowSettings
from lopa_ray.decoding.decoders.dmax import DMaxSession, DMaxSettings
from lopa_ray.decoding.session import DecodeSession


def dmax_settings(recorded: RowSettings) -> tuple[type[DMaxSettings], dict[str, Any]]:
    """The class and the arguments of a row's settings, for a `PublishedDMaxSession`."""
    block, max_new_tokens = recorded.pop_whole_blocks()
    return DMaxSettings, {
        "block_size": block,
        "max_new_tokens": max_new_tokens,
        "confidence_threshold": recorded.pop_threshold("threshold"),
        "stop_at_eos": recorded.pop("early_stop", bool),
    }


def published_dmax(session: DecodeSession, row: dict[str, Any]) -> DecodeSession:
    """The published session in place of one that has not begun."""
    return PublishedDMaxSession(session.prompt, session.settings, session.vocabulary)


class PublishedDMaxSession(DMaxSession):
    """A call that is sure of a block ends it even if masks are left, and these stay. An EOS ends the answer wherever it
    is in its block, in the prompt's part too."""

    @property
    def exhausted(self) -> bool:
        """The current block is final, and it is the last block, or has an EOS."""
        block = self._canvas.ids[self._block.start : self._block.stop]
        ended = self.settings.stop_at_eos and self.vocabulary.eos_token_id in block
        return self._block_is_final and (self._block.stop == self.max_len or ended)

    @property
    def _block_is_final(self) -> bool:
        return self._settles
