"""CudaCapture: captures functions as CUDA graphs, as https://pytorch.org/docs/stable/notes/cuda.html#cuda-graphs asks:
on one side stream, with one pool of memory for graphs that are never replayed at the same time."""

from __future__ import annotations

from collections.abc import Callable

import torch

WARM_UPS = 2
"""Runs before a capture. The first run compiles kernels and reserves the workspaces of libraries."""


class CudaCapture:
    """Captures functions without arguments and results, all of which may share memory for what they compute between."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch gives it no types

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]

    def warm_up(self, function: Callable[[], None]) -> int:
        """Run it; returns the bytes of memory that the last run takes. Raises torch.OutOfMemoryError."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                torch.cuda.reset_peak_memory_stats(self._device)
                before = torch.cuda.memory_allocated(self._device)
                function()
        current.wait_stream(self._stream)
        return int(torch.cuda.max_memory_allocated(self._device) - before)

    def capture(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Capture it after a warm-up; other threads may use the device meanwhile. Raises what torch raises if the
        function does what a graph cannot have."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            function()
        return graph
