"""The plain batched forward computes what the packed one does."""

import pytest
import torch

from lopa_lab.bench.batched_forward import BatchedForward
from lopa_ray.errors import SettingsError
from lopa_ray.execution.runner import BranchRunner
from support.tiny_model import DENSE_MODELS, load_tiny_model

pytestmark = pytest.mark.medium

BATCH, WINDOW = 3, 24


@pytest.mark.parametrize("prefix", [0, 20])
@pytest.mark.parametrize("name", DENSE_MODELS)
def test_its_logits_are_those_of_the_runner(name, prefix):
    model = load_tiny_model(name)
    runner = BranchRunner(model, max_num_seqs=1, max_model_len=prefix + WINDOW)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (BATCH, WINDOW), generator=draw)
    if prefix:
        runner.logits(range(prefix), to_stage=(range(prefix),))
    forward = BatchedForward(model, BATCH, WINDOW, runner.cache.data[0, :, :, :, :prefix])
    expected = torch.stack([runner.logits(row, start=prefix) for row in ids.tolist()])
    assert expected.std() > 0.1
    torch.testing.assert_close(forward(ids), expected, rtol=1e-4, atol=1e-4)


def test_a_quantised_model_is_refused():
    model = load_tiny_model(quantization="w8")
    with pytest.raises(SettingsError, match=r"model\.quantization"):
        BatchedForward(model, 1, 8, torch.zeros(2, 2, 2, 0, 8))
