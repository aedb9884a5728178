"""Steps in recorded graphs on the CPU: the same tokens as without, for whatever a graph has and whatever it has not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import SettingsError
from lopa_ray.execution import model_loader, step_graphs
from lopa_ray.execution.attention import LaneAttention, PackedAttention
from lopa_ray.execution.device import DEVICES
from lopa_ray.execution.graph_capture import CudaCapture
from lopa_ray.execution.lane import lanes_of
from lopa_ray.execution.packing import Packing
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.execution.step_graphs import graph_refusal
from lopa_ray.kernels.sdpa import sdpa
from lopa_ray.protocol.plan import Branch, Plan, ScheduledRequest, StepPlan, StoredPrefix
from lopa_ray.protocol.sampling_params import SamplingParams
from support.in_process_group import report_bytes
from support.recorded_graph import RecordedGraph, cuda_graphs_as, recorded_graphs
from support.thread_tensor_parallel import ShardThreads
from support.tiny_model import MODELS, PROMPTS, SETTINGS, TINY_MODEL, load_canvas_model, load_tiny_model

pytestmark = [pytest.mark.medium, pytest.mark.stand_in, pytest.mark.usefixtures("one_thread")]

CPU = torch.device("cpu")
ROWS = 256
"""Of the largest graph."""
DECODES = {
    "two_phase": TINY_MODEL.name,
    "prefix_cache": TINY_MODEL.name,
    "block_diffusion": "sdar-tiny-3l",
    "nemotron": "nemotron-tiny-3l",
    "verified": TINY_MODEL.name,
    "dmax": TINY_MODEL.name,
    "penalties": TINY_MODEL.name,
}
"""Settings → model. The last two have inputs or scores that no graph has."""


@pytest.fixture(autouse=True)
def _graphs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU passes for a device that captures graphs, of few rows."""
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], captures_graphs=True))
    monkeypatch.setattr(model_loader, "triton_works", lambda: True)
    monkeypatch.setattr(step_graphs, "MAX_GRAPH_ROWS", ROWS)
    monkeypatch.setattr(RecordedGraph, "replays", 0)


@contextmanager
def captured(**sizes: int) -> Iterator[BranchRunner]:
    """A runner with graphs."""
    with recorded_graphs():
        runner = BranchRunner(
            load_tiny_model(),
            attention=PackedAttention(),
            **{"max_num_seqs": 3, "max_model_len": 320, **sizes},
        )
        runner.capture_graphs(CudaCapture(CPU))
        yield runner


def branch_step(
    step: int, request: int, length: int = 32, params: SamplingParams | None = None, stop: int | None = None
) -> StepPlan:
    """A step of one request with so many masks behind nothing."""
    stop = length if stop is None else stop
    branch = Branch(((length, stop),), range(length))
    plan = Plan(
        step, 0, (127,) * length, (branch,), (), **({} if params is None else {"sampling_params": params})
    )
    return StepPlan(0, step, (ScheduledRequest(request, request, plan, (0,)),))


def reports(runner: BranchRunner, step: StepPlan) -> list[bytes]:
    return [report_bytes(report) for _, report in runner.execute(step).reports]


def test_drafts_through_an_adapter_are_in_graphs() -> None:
    """Calls that draft, that verify, and that do both."""
    model = MODELS / "nemotron-tiny-2l-spec"
    given = {
        "max_model_len": 256,
        "max_num_seqs": 3,
        "attention": "reference",
        "draft_adapter": str(model / "linear_spec_lora"),
    }
    separate = SETTINGS["joint_speculation"].replace(
        temperature=0, drafting="separate", num_branches=1, trajectory=False
    )
    for settings in (separate, separate.replace(drafting="joint")):
        with LocalEngine.from_pretrained(model, **given) as engine:
            wanted = engine.generate(PROMPTS, settings)
        before = RecordedGraph.replays
        with recorded_graphs(), LocalEngine.from_pretrained(model, **given, cuda_graphs="auto") as engine:
            results = engine.generate(PROMPTS, settings)
        assert [(r.token_ids, r.steps) for r in results] == [(r.token_ids, r.steps) for r in wanted]
        assert RecordedGraph.replays - before > max(r.steps for r in results) / 2


@pytest.mark.parametrize("name", DECODES)
def test_every_decoder_has_the_same_results_with_and_without_graphs(name: str) -> None:
    """Several requests at once, so steps have from a few rows to more than a graph has."""
    settings, model = SETTINGS[name], DECODES[name]
    given = {"max_model_len": 256, "max_num_seqs": 3, "attention": "reference"}
    with LocalEngine.from_pretrained(MODELS / model, **given) as engine:
        wanted = engine.generate(PROMPTS, settings)
    assert RecordedGraph.replays == 0
    with (
        recorded_graphs(),
        LocalEngine.from_pretrained(MODELS / model, **given, cuda_graphs="auto") as engine,
    ):
        results = engine.generate(PROMPTS, settings)
    assert [(r.token_ids, r.steps, r.forwards) for r in results] == [
        (r.token_ids, r.steps, r.forwards) for r in wanted
    ]
    assert RecordedGraph.replays > 0 or name in ("dmax", "penalties")


def test_a_step_outside_of_the_buckets_has_no_graph() -> None:
    plain = BranchRunner(load_tiny_model(), max_num_seqs=3, max_model_len=320, attention=PackedAttention())
    sampled = SamplingParams(temperature=0.7, seed=1)
    with captured() as runner:
        for at, (step, replays) in enumerate(
            (
                (branch_step(1, 0, 32), 1),
                (branch_step(2, 1, ROWS), 1),
                (branch_step(3, 2, ROWS + 1), 0),
                (branch_step(4, 0, 32, sampled), 0),
            )
        ):
            RecordedGraph.replays = 0
            assert reports(runner, step) == reports(plain, step), at
            assert RecordedGraph.replays == replays, at


def test_a_step_with_more_rows_to_score_than_rows_has_no_graph() -> None:
    """Prompts that are stored as a whole have no rows, and still a next token."""
    branch = Branch(((8, 8),), range(8, 9), causal_stop=8)
    plan = Plan(1, 0, (1,) * 8, (branch,), ())
    stored = (StoredPrefix(1, range(8)),)
    with captured(max_num_seqs=20) as runner:
        has_graph = []
        for count in (10, 20):
            requests = [ScheduledRequest(at, at, plan, (0,), stored_prefix=stored) for at in range(count)]
            lanes = [lane for request in requests for lane in lanes_of(request)]
            packing = Packing(lanes, (), runner.packing_options)
            assert packing.num_rows == 0 and len(packing.rows_to_score.positions) == count
            assert runner._graphs is not None
            has_graph.append(runner._graphs.graph_of(packing) is not None)
    assert has_graph == [True, False]


def test_the_inputs_of_a_small_step_hold_nothing_of_a_larger_one_before() -> None:
    """Both in one bucket, and buckets share their memory."""
    plain = BranchRunner(load_tiny_model(), max_num_seqs=3, max_model_len=320, attention=PackedAttention())
    with captured() as runner:
        for step, length in enumerate((96, 17, 32, 3, 81, 1), start=1):
            plan = branch_step(step, step % 3, length)
            assert reports(runner, plan) == reports(plain, plan)


def test_two_steps_in_flight() -> None:
    """The second one is launched before the host has the scores of the first."""
    plain = BranchRunner(load_tiny_model(), max_num_seqs=3, max_model_len=320, attention=PackedAttention())
    with captured() as runner:
        first, second = runner.launch(branch_step(1, 0, 20)), runner.launch(branch_step(2, 1, 24))
        for launched, plan in ((first, branch_step(1, 0, 20)), (second, branch_step(2, 1, 24))):
            ((_, report),) = launched.report().reports
            ((_, wanted),) = plain.execute(plan).reports
            assert report_bytes(report) == report_bytes(wanted)


def test_graphs_take_a_share_of_the_free_memory(caplog: pytest.LogCaptureFixture) -> None:
    class Greedy(CudaCapture):
        def warm_up(self, function: object) -> int:
            super().warm_up(function)
            return 3 << 20

    with recorded_graphs(), cuda_graphs_as(RecordedGraph, free_bytes=8 << 20):
        runner = BranchRunner(
            load_tiny_model(), max_num_seqs=1, max_model_len=96, attention=PackedAttention()
        )
        runner.capture_graphs(Greedy(CPU))
        assert reports(runner, branch_step(1, 0)) and RecordedGraph.replays == 0
    assert "it takes 3 MiB, and graphs may take 2 MiB" in caplog.text


def test_the_reason_of_a_failed_capture_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(BranchRunner, "capture_graphs", fail)
    with (
        recorded_graphs(),
        pytest.raises(SettingsError, match=r"model\.cuda_graphs.*not permitted.*set it to none"),
    ):
        LocalEngine.from_pretrained(TINY_MODEL, attention="reference", cuda_graphs="auto")


def test_what_has_no_graphs_says_why(caplog: pytest.LogCaptureFixture) -> None:
    model, packed = load_tiny_model(), PackedAttention()
    assert graph_refusal(model, packed) is None
    assert "lane by lane" in str(graph_refusal(model, LaneAttention(sdpa)))
    assert "transformers" in str(graph_refusal(load_canvas_model(), packed))
    refusals = ShardThreads(2).run(lambda group: graph_refusal(replaced_group(group), packed))
    assert all("shards" in str(refusal) for refusal in refusals)
    caplog.set_level("INFO", logger="lopa.graphs")
    with recorded_graphs():
        LocalEngine.from_pretrained(TINY_MODEL, attention="sdpa", cuda_graphs="auto").close()
    assert "no CUDA graphs: its attention is computed lane by lane" in caplog.text


def replaced_group(group: object) -> object:
    """A model that says that it is one of the shards of `group`."""
    model = load_tiny_model()
    model.tp_group = group
    return model
