"""Two network namespaces with a slow link between them, made of two TUN devices and a process that waits.

`tc netem` does this where the kernel has it. This needs root and /dev/net/tun alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import struct
import subprocess
import threading
import time

ADDRESSES = ("10.77.0.1", "10.77.0.2")

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000

PACKET_BYTES = 65536


class SlowLink:
    """Packets arrive `delay_s` after they were sent, in order. Nothing else limits the link."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.namespaces = tuple(f"lopa{os.getpid()}{side}" for side in "ab")
        self._devices: list[int] = []

    def __enter__(self) -> SlowLink:
        for name, own, peer in zip(self.namespaces, ADDRESSES, reversed(ADDRESSES), strict=True):
            device = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name[-15:].encode(), IFF_TUN | IFF_NO_PI))
            self._devices.append(device)
            ip("netns", "add", name)
            ip("link", "set", name[-15:], "netns", name)
            ip("-n", name, "addr", "add", own, "peer", peer, "dev", name[-15:])
            ip("-n", name, "link", "set", name[-15:], "mtu", "9000", "up")
            ip("-n", name, "link", "set", "lo", "up")
        for source, target in (self._devices, reversed(self._devices)):
            in_transit: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            threading.Thread(target=self._read, args=(source, in_transit), daemon=True).start()
            threading.Thread(target=self._write, args=(target, in_transit), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for device in self._devices:
            os.close(device)
        for name in self.namespaces:
            ip("netns", "del", name)

    def _read(self, device: int, in_transit: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):  # the device went away with its namespace
            while packet := os.read(device, PACKET_BYTES):
                in_transit.put((time.monotonic() + self.delay_s, packet))

    def _write(self, device: int, in_transit: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        while True:
            due, packet = in_transit.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with contextlib.suppress(OSError):  # the far end may be down
                os.write(device, packet)


def ip(*arguments: str) -> None:
    """The `ip` command. Fails if it does."""
    subprocess.run(["ip", *arguments], check=True)
