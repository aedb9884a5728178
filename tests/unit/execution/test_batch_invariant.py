"""With `model.batch_invariant` a request's reports have the same bits alone and in company, in bfloat16 too."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from lopa_ray.config.model_settings import ModelSettings
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.errors import SettingsError
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels import invariant_linear as products
from lopa_ray.kernels.grouped_matmul import grouped_matmul
from lopa_ray.model.config import Quantization
from lopa_ray.model.linear import check_places
from lopa_ray.model.native_implementation import NativeImplementation, load_model
from lopa_ray.model.tensor_parallel import OrderedSums
from lopa_ray.model.transformer import Transformer
from support.in_process_group import InProcessGroup, reference_reports, report_bytes
from support.paths import MODELS
from support.thread_tensor_parallel import ShardThreads
from support.tiny_model import tiny_spec

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def invariant_model(name: str, quantization: Quantization = "none") -> Transformer:
    plain = load_model(MODELS / name, dtype=torch.bfloat16, device="cpu", quantization=quantization)
    weights = ((key, value.detach()) for key, value in plain.named_parameters())
    config = plain.config.with_batch_invariant(True)
    return NativeImplementation(config, torch.bfloat16, "cpu").build_model(weights)


def settings(branches: int, **changes: object) -> LopaSettings:
    common = {"max_new_tokens": 24, "block_size": 8, "confidence_threshold": 0.3, "top_logprobs": 2}
    return LopaSettings(num_branches=branches, **{**common, **changes})


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "quantization", "workers"),
    [
        ("dream-tiny-2l", "none", 3),
        ("dream-tiny-2l", "w8", 1),
        ("llada2-tiny-3l", "none", 1),
        ("llada2-tiny-3l", "w8", 3),
        ("llada2-tiny-3l", "w8a8", 3),
    ],
)
def test_reports_in_bfloat16_are_the_same_alone_and_in_company(
    name: str, quantization: Quantization, workers: int
) -> None:
    model = invariant_model(name, quantization)
    group = InProcessGroup(model, workers)
    wanted = {}
    for at, branches in enumerate((1, 3, 8)):
        prompt = list(range(1, 5 + 9 * at))
        asked = settings(branches, temperature=0.7 if at == 1 else 0.0)
        wanted[group.scheduler.submit(group.create_session(prompt, asked))] = reference_reports(
            model, group.create_session(prompt, asked)
        )
    compared = 0
    while group.scheduler.busy:
        reports = group.evaluate(group.scheduler.plan(workers))
        for step_report in reports:
            for request, report in step_report.reports:
                assert report_bytes(report) == wanted[request][report.step - 1][report.branch]
                compared += 1
        group.scheduler.advance(reports)
    assert compared > 10


def test_reports_are_the_same_with_two_threads() -> None:
    model = invariant_model("dream-tiny-2l")
    vocabulary = BranchRunner(model, max_num_seqs=1, max_model_len=16).vocabulary
    asked = settings(3, max_new_tokens=6, block_size=2)
    one = reference_reports(model, new_session([5, 6, 7], asked, vocabulary))
    torch.set_num_threads(2)
    assert reference_reports(model, new_session([5, 6, 7], asked, vocabulary)) == one


@torch.inference_mode()
@pytest.mark.parametrize(("outputs", "inputs"), [(1024, 1024), (96, 6144)])
def test_a_row_has_the_same_bits_among_any_others(outputs: int, inputs: int) -> None:
    """For sizes at which torch's product on a CPU with AMX has other bits for 32 rows than for 512."""
    torch.manual_seed(0)
    weight = (torch.randn(outputs, inputs) / inputs**0.5).bfloat16()
    x, bias = torch.randn(617, inputs).bfloat16(), torch.randn(outputs).bfloat16()
    whole = products.invariant_linear(x, weight, bias)
    for start, stop in ((0, 1), (5, 20), (100, 116), (3, 617)):
        assert torch.equal(products.invariant_linear(x[start:stop], weight, bias), whole[start:stop])
    wanted = torch.nn.functional.linear(x.float(), weight.float(), bias.float())
    torch.testing.assert_close(whole.float(), wanted, atol=3e-2, rtol=3e-2)
    ends = torch.tensor([40, 617], dtype=torch.int32)
    both = torch.stack((weight, weight))
    of_experts = grouped_matmul(x, both, ends, batch_invariant=True)
    assert torch.equal(of_experts, products.invariant_linear(x, weight))


@torch.inference_mode()
def test_products_always_have_as_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, linear = [], products.F.linear
    monkeypatch.setattr(products.F, "linear", lambda x, *rest: rows.append(len(x)) or linear(x, *rest))
    for count in (1, 31, 32, 33, 100):
        assert len(products.invariant_linear(torch.ones(count, 8), torch.ones(4, 8))) == count
    assert set(rows) == {products.CHUNK_ROWS}
    assert len(rows) == 1 + 1 + 1 + 2 + 4


def test_a_cpu_whose_products_depend_on_the_place_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lopa_ray.kernels.invariant_linear.invariant_linear",
        lambda x, weight: torch.nn.functional.linear(x, weight) + torch.arange(len(x))[:, None],
    )
    products.place_matters.cache_clear()
    try:
        with pytest.raises(
            SettingsError, match=r"model\.batch_invariant: got true, but with 1 torch threads"
        ):
            check_places(invariant_model.__wrapped__("dream-tiny-2l"))
    finally:
        products.place_matters.cache_clear()


def test_sums_of_shards_are_in_order_of_rank() -> None:
    parts = torch.tensor([[1e8, 1.0], [1.0, 1e8], [-1e8, -1e8]])
    sums = ShardThreads(3).run(lambda group: OrderedSums(group).all_reduce(parts[group.rank]))
    wanted = (parts[0] + parts[1]) + parts[2]
    assert all(torch.equal(total, wanted) for total in sums)


def test_what_cannot_be_invariant_is_refused() -> None:
    for changes, words in (
        ({"implementation": "transformers"}, "batch_invariant True with implementation transformers"),
        ({"attention": "npu"}, "attention npu with batch_invariant true"),
        ({"device": "cuda", "attention": "flash_attn"}, "attention flash_attn with batch_invariant true"),
        ({"device": "npu"}, "batch_invariant true with device npu"),
    ):
        with pytest.raises(SettingsError, match=words):
            ModelSettings(batch_invariant=True, **changes)


def test_the_setting_reaches_the_model() -> None:
    assert not tiny_spec().model.batch_invariant
    spec = tiny_spec(model={"batch_invariant": True, "device": "cuda"})
    assert spec.model.batch_invariant
    assert spec.config.model.attention == "triton"
    fp8 = replace(spec.model, quantization="fp8", batch_invariant=False)
    assert fp8.with_batch_invariant(True).quantization == "none"
