"""Two nodes as an operator makes them, with `ray start`; and what a slow link between them costs per step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.processes import kill_process_tree, run_program
from support.ray_nodes import TOKEN_MODE, run_head, start_node
from support.slow_link import ADDRESSES, SlowLink

NODE_OPTIONS = "--num-cpus=1 --object-store-memory=100000000"

DELAYS_MS = [0.0, 1.0, 5.0, 20.0]
"""One way."""


def decode(address: str, prefix: Sequence[str] = ()) -> Any:
    """Two workers, one on each node."""
    return run_program("spread_group.py", address, "2", prefix=prefix, environment=TOKEN_MODE, timeout_s=600)


@pytest.mark.long
def test_a_group_over_two_nodes(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(run_head(tmp_path, NODE_OPTIONS, "--include-dashboard=false"))
        second = start_node(
            tmp_path / "second.log",
            f"--address={first.address} --node-ip-address=127.0.0.2",
            NODE_OPTIONS,
            environment=first.environment,
        )
        stack.callback(kill_process_tree, second)
        decoded = decode(first.address)
    assert (decoded["nodes"], decoded["tokens"]) == (2, "equal")


@pytest.fixture
def link() -> Iterator[SlowLink]:
    """Two network namespaces and the link between them."""
    if os.geteuid() or not Path("/dev/net/tun").exists():
        pytest.skip("network namespaces need root and /dev/net/tun")
    with SlowLink() as link:
        yield link


@pytest.mark.long
def test_what_a_slow_link_costs(link: SlowLink, tmp_path: Path) -> None:
    """Tokens are equal whatever the delay; what a step costs more is printed, for LONG_RUN.md."""
    here, there = (["ip", "netns", "exec", name] for name in link.namespaces)
    steps: dict[str, dict[float, float]] = {}
    with ExitStack() as stack:
        first = stack.enter_context(
            run_head(tmp_path, NODE_OPTIONS, "--include-dashboard=false", prefix=here, host=ADDRESSES[0])
        )
        second = start_node(
            tmp_path / "second.log",
            f"--address={first.address} --node-ip-address={ADDRESSES[1]}",
            NODE_OPTIONS,
            prefix=there,
            environment=first.environment,
        )
        stack.callback(kill_process_tree, second)
        for delay in DELAYS_MS:
            link.delay_s = delay / 1000
            decoded = decode(first.address, here)
            assert (decoded["nodes"], decoded["tokens"]) == (2, "equal")
            for name, phases in decoded["ms"].items():
                fastest, median, slowest = phases["step"]
                steps.setdefault(name, {})[delay] = fastest
                print(f"{name}, {delay:g} ms each way: {fastest} / {median} / {slowest} ms per step")
    for name, by_delay in steps.items():
        # A step is a call and its answer, so the delay counts twice; K/V that crosses as well adds a few more.
        assert 2 * 20 < by_delay[20.0] < by_delay[0.0] + 8 * 20, name
