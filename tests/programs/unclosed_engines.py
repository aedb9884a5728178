"""A program that closes no engine: it shuts Ray down under the first, and ends with the second on a Ray of its own.

Prints the processes below it as JSON.
"""

from __future__ import annotations

import json

import psutil
import pytest
import ray

from actors import RayEngine
from lopa_ray import ClusterError
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

if __name__ == "__main__":
    config = tiny_config(group={"num_workers": 1})
    first = RayEngine.from_config(config)
    expected = first.generate(PROMPTS[0], SETTINGS["two_phase"]).token_ids
    ray.shutdown()
    with pytest.raises(ClusterError, match="Ray was shut down"):
        first.generate(PROMPTS[0], SETTINGS["two_phase"])
    second = RayEngine.from_config(config)
    with pytest.raises(ClusterError, match="Ray was shut down"):
        first.generate(PROMPTS[0], SETTINGS["two_phase"])
    del first  # which leaves the second its Ray
    assert second.generate(PROMPTS[0], SETTINGS["two_phase"]).token_ids == expected
    print(json.dumps([process.pid for process in psutil.Process().children(recursive=True)]))
