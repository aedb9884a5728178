"""A program that never closes its engine. Prints the processes below it as JSON."""

from __future__ import annotations

import json

import psutil

from actors import RayEngine
from support.tiny_model import PROMPTS, SETTINGS, tiny_config

if __name__ == "__main__":
    engine = RayEngine.from_config(tiny_config(group={"num_workers": 1}))
    assert engine.generate(PROMPTS[0], SETTINGS["two_phase"]).tokens
    print(json.dumps([process.pid for process in psutil.Process().children(recursive=True)]))
