"""The user that a program of root's is: one without rights, who can still read the interpreter."""

from __future__ import annotations

import os
from collections.abc import Sequence

from .kernel import capabilities, prctl, set_capabilities

_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 8, 47, 2


def become_user(uid: int, reaching: Sequence[str]) -> None:
    """Takes user and group `uid`, for good, without root's capabilities.

    Where one of the paths `reaching` is in a folder that only root may enter (as interpreters of pyenv, uv and conda in
    root's home), one capability stays: that of reading past modes of files. What then keeps files apart is Landlock
    alone. Containers often lack that capability; they have the wider one of reading and writing.
    """
    before = capabilities()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    prctl(_PR_SET_KEEPCAPS, 1)
    os.setresuid(uid, uid, uid)
    set_capabilities(0, permitted=before)
    kept = 0
    if not all(os.access(path, os.X_OK, effective_ids=True) for path in reaching):
        kept = _CAP_DAC_READ_SEARCH if before >> _CAP_DAC_READ_SEARCH & 1 else _CAP_DAC_OVERRIDE
    set_capabilities(1 << kept if kept else 0)
    if kept:
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, kept)
