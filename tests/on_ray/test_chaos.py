"""Workers lost in every way, again and again, over many requests: no token differs, and how long it takes."""

from __future__ import annotations

import random
import signal
import statistics
import threading
import time
from pathlib import Path

import pytest

from support.trials import WORKERS, Oracle, Trial, actor_pids, end, fated

ROUNDS = 6
"""Each loses workers at a random step of at least nine requests."""

KILL, STOP = signal.SIGKILL, signal.SIGSTOP

DEADLINE_S = 3.0

EVENTS = {
    **{f"killed: {point}": (point, 1, KILL) for point in ("step", "source", "receiver", "forward", "answer")},
    **{f"killed: {point}": (point, 1, KILL) for point in ("load", "adopt", "export", "join")},
    "killed: two at once": ("forward", 2, KILL),
    "killed: all but one, receivers": ("receiver", WORKERS - 1, KILL),
    "stopped: forward": ("forward", 1, STOP),
    "stopped: source": ("source", 1, STOP),
    "stopped: join": ("join", 1, STOP),
}


@pytest.mark.long
@pytest.mark.parametrize("name", EVENTS)
def test_at_random_steps(name: str, tmp_path: Path, oracle: Oracle, capsys: pytest.CaptureFixture) -> None:
    point, number, kind = EVENTS[name]
    draw = random.Random(name)
    with fated(tmp_path, oracle, step_timeout_s=DEADLINE_S if kind == STOP else 60.0) as (trial, fates):

        def happens() -> None:
            fates.lay(point, number, kind)
            if point in ("load", "adopt", "export", "join"):
                fates.lay("forward")

        for _ in range(ROUNDS):
            trial.until_there_are(WORKERS)
            trial.batch(6, happens, after=draw.randrange(1, 60))
            trial.until(lambda: not fates.waiting)
        trial.until_there_are(WORKERS)
        report(capsys, name, trial, list(fates.taken().values()))


@pytest.mark.long
@pytest.mark.parametrize("transfer", ["collective", "object_store"])
@pytest.mark.parametrize("kind", [KILL, STOP])
def test_at_random_times(
    kind: signal.Signals, transfer: str, tmp_path: Path, oracle: Oracle, capsys: pytest.CaptureFixture
) -> None:
    """Any worker, also one that still loads its model or that is idle, while the size changes as well."""
    draw = random.Random(f"{kind} {transfer}")
    moments: dict[int, float] = {}
    over = threading.Event()
    with fated(tmp_path, oracle, step_timeout_s=DEADLINE_S, transfer=transfer) as (trial, _):

        def strike() -> None:
            while not over.wait(draw.uniform(0.5, 4.0)):
                status = trial.engine.status()
                if draw.random() < 0.3:
                    trial.engine.resize(draw.randint(2, 4))
                elif status.workers > 1:
                    pid = draw.choice([pid for pid in actor_pids("BranchWorker") if pid not in moments])
                    moments[pid] = time.time()
                    end(pid, kind)
                    if kind == STOP:
                        over.wait(
                            2 * DEADLINE_S
                        )  # not the last one, before it is known that this one is lost

        striking = threading.Thread(target=strike)
        striking.start()
        try:
            while len(moments) < 2 * ROUNDS:
                assert striking.is_alive()
                trial.batch(draw.randint(1, 8))
                if draw.random() < 0.2:
                    time.sleep(draw.uniform(0.0, 3.0))
        finally:
            over.set()
            striking.join()
            for pid in moments:
                end(pid, KILL)
        trial.engine.resize(WORKERS)
        trial.until_there_are(WORKERS)
        report(capsys, f"{kind.name} at random, {transfer}", trial, list(moments.values()))


def report(capsys: pytest.CaptureFixture, name: str, trial: Trial, moments: list[float]) -> None:
    """One line of the record: what the events cost the requests in flight."""
    assert trial.requests >= 50 and len(moments) >= ROUNDS
    held = [pause for moment in moments if (pause := trial.held_up(moment))]
    with capsys.disabled():
        print(
            f"\n{name:32} {len(moments):3} events, {trial.requests:3} requests, held up "
            f"{statistics.median(held):.2f} s (median), {max(held):.2f} s (worst)"
        )
