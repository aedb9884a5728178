"""Two jobs on one output: the second one is told who has it, and a killed one holds nobody up."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from cluster.jobs.job import run_job
from cluster.jobs.output_lock import Lease, output_lock
from lopa_ray.engine.config import Config
from lopa_ray.errors import SettingsError
from support.paths import ROOT

pytestmark = pytest.mark.medium

HOLD = "import sys, time; from cluster.jobs.output_lock import output_lock\n"
HOLD += "with output_lock(sys.argv[1], time.sleep): print('held', flush=True); time.sleep(600)"


def no_wait(_: float) -> None:
    pytest.fail("nobody is there")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_second_job_is_told_who_writes(tmp_path: Path, end: signal.Signals) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one"}\n')
    output = str(tmp_path / "results.jsonl")
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, output],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        who = f"process {holder.pid} on {socket.gethostname()}, since "
        with pytest.raises(SettingsError, match=who):
            run_job(str(tmp_path / "prompts.jsonl"), output, Config.load("demo"), 1, raw=False)
        holder.send_signal(end)
    with output_lock(output, no_wait) as check:
        assert json.loads(Path(f"{output}.job.lock").read_text())["process"] == os.getpid()
        check()
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_where_nothing_locks_the_holder_shows_that_it_is_there(tmp_path: Path) -> None:
    url = f"memory://{tmp_path}/results.jsonl"
    file_system, path = fsspec.core.url_to_fs(f"{url}.job.lock")
    first = Lease(url, file_system, path)
    first.take(no_wait)
    with (
        pytest.raises(SettingsError, match=f"process {os.getpid()} on "),
        output_lock(url, lambda _: first.renew()),
    ):
        pass
    # The first one is stopped, not ended: when it goes on, it finds out.
    with output_lock(url, lambda _: None) as check:
        check()
        first.renew()
        with pytest.raises(SettingsError, match="another job writes"):
            first.check()
        first.release()
        assert file_system.exists(path)
    assert not file_system.exists(path)
