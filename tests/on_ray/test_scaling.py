"""A group that follows its load by itself: more workers while it decodes, fewer when it is idle, equal tokens."""

from __future__ import annotations

import time

import pytest

from actors.engine import RayEngine
from lopa_ray.errors import SettingsError
from support.groups import config
from support.trials import PATIENCE_S, Oracle, Trial

SCALING = {
    "max_workers": 3,
    "target": 2.0,
    "interval_s": 0.2,
    "grow_after_s": 0.2,
    "shrink_after_s": 2.0,
    "cool_down_s": 0.5,
}


@pytest.mark.long
def test_it_grows_while_it_decodes_and_shrinks_when_it_is_idle(oracle: Oracle) -> None:
    with RayEngine.from_config(config(group={"num_workers": 1, "scaling": SCALING})) as engine:
        trial = Trial(engine, oracle)
        trial.until(lambda: engine.status().workers == 3)
        deadline = time.monotonic() + PATIENCE_S
        while (status := engine.status()).workers > 1:
            assert time.monotonic() < deadline, status
            time.sleep(0.1)
        assert status.target_workers == 1
        with pytest.raises(SettingsError, match=r"got 4 workers; allowed: 1 to 3, as group\.scaling says"):
            engine.resize(4)
        assert engine.status().target_workers == 1
        engine.resize(2)
        assert engine.status().target_workers == 2
        trial.batch(3)
