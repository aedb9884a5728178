"""A program that closes no engine: it shuts Ray down under the first, and ends with the second.

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
    engine = RayEngine.from_config(config)
    first = engine.generate(PROMPTS[0], SETTINGS["two_phase"])
    ray.shutdown()
    with pytest.raises(ClusterError, match="Ray was shut down"):
        engine.generate(PROMPTS[0], SETTINGS["two_phase"])
    engine = RayEngine.from_config(config)  # the first one ends here, and leaves this one its Ray
    assert engine.generate(PROMPTS[0], SETTINGS["two_phase"]).token_ids == first.token_ids
    print(json.dumps([process.pid for process in psutil.Process().children(recursive=True)]))
