"""Workers lost in every way, again and again, over many requests: no token differs, and how long it takes."""

from __future__ import annotations

import random
import signal
import statistics
import threading
import time
from pathlib import Path

import pytest

from actors.transfer.kv_transfer import TRANSFERS
from support.group_under_test import (
    NUM_WORKERS,
    GroupUnderTest,
    group_with_faults,
    reference_of,
)
from support.processes import actor_pids, send_signal
from support.tiny_model import TINY_EXPERTS, TINY_MODEL

ROUNDS = 6
"""Each loses workers at a random step of at least nine requests."""

KILL, STOP = signal.SIGKILL, signal.SIGSTOP

STEP_TIMEOUT_S = 3.0


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("sig", "transfer", "folder"),
    [
        *((sig, transfer, TINY_MODEL) for sig in (KILL, STOP) for transfer in TRANSFERS),
        *((KILL, "collective", folder) for folder in TINY_EXPERTS.values()),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_at_random_times(
    sig: signal.Signals,
    transfer: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    """Any worker, also one that still loads its model or that is idle, while the size changes as well."""
    rng, reference = random.Random(f"{sig} {transfer}"), reference_of(folder)
    moments: dict[int, float] = {}
    done = threading.Event()
    settings = {"step_timeout_s": STEP_TIMEOUT_S, "transfer": transfer}
    with group_with_faults(tmp_path, reference, **settings) as (group, _):

        def signal_workers() -> None:
            while not done.wait(rng.uniform(0.5, 4.0)):
                status = group.engine.status()
                if rng.random() < 0.3:
                    group.engine.resize(rng.randint(2, 4))
                elif status.workers > 1:
                    pid = rng.choice([pid for pid in actor_pids("BranchWorker") if pid not in moments])
                    moments[pid] = time.time()
                    send_signal(pid, sig)
                    if sig == STOP:
                        # Not the last one, before it is known that this one is lost.
                        done.wait(2 * STEP_TIMEOUT_S)

        signaller = threading.Thread(target=signal_workers)
        signaller.start()
        try:
            while len(moments) < 2 * ROUNDS:
                assert signaller.is_alive()
                group.run_batch(rng.randint(1, 8))
                if rng.random() < 0.2:
                    time.sleep(rng.uniform(0.0, 3.0))
        finally:
            done.set()
            signaller.join()
            for pid in moments:
                send_signal(pid, KILL)
        group.engine.resize(NUM_WORKERS)
        group.wait_for_workers(NUM_WORKERS)
        report(capsys, f"{sig.name} at random, {transfer}, {folder.name}", group, list(moments.values()))


def report(capsys: pytest.CaptureFixture, name: str, group: GroupUnderTest, moments: list[float]) -> None:
    """One line of the record: how long the events paused the requests in flight."""
    assert group.requests >= 50 and len(moments) >= ROUNDS
    pauses = [pause for moment in moments if (pause := group.pause_s(moment))]
    with capsys.disabled():
        print(
            f"\n{name:32} {len(moments):3} events, {group.requests:3} requests, pause "
            f"{statistics.median(pauses):.2f} s (median), {max(pauses):.2f} s (worst)"
        )
