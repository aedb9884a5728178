"""Commits whose K/V come from other workers: one payload per source and step, and all of a step's commits or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from unittest.mock import Mock, patch

import pytest
import torch
from torch import Tensor

from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.errors import TransferError
from lopa_ray.kernels.operators import CALLS
from lopa_ray.protocol.plan import StepPlan
from support.in_process_group import InProcessGroup, InProcessTransfer
from support.tiny_model import load_tiny_model

pytestmark = pytest.mark.stand_in

MODEL = load_tiny_model()
REQUESTS = 6


@dataclass
class CountingTransfer(InProcessTransfer):
    """Notes the sources of each call."""

    calls: list[list[int]] = field(default_factory=list)

    def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
        self.calls.append(list(payloads))
        super().broadcast(payloads)


def step_with_commits(group: InProcessGroup) -> list[StepPlan]:
    """Decode until every request has a commit that comes from another worker; the plans of that step."""
    while True:
        plans = group.scheduler.plan(len(group.runners))
        if sum(map(len, plans[0].commits_by_source.values())) == REQUESTS:
            return plans
        group.scheduler.advance(group.evaluate(plans))


@pytest.fixture
def group() -> InProcessGroup:
    settings = LopaSettings(
        max_new_tokens=12, block_size=4, confidence_threshold=0.6, stop_at_eos=False, num_branches=3
    )
    group = InProcessGroup(MODEL, 2, max_num_seqs=REQUESTS)
    for index in range(REQUESTS):
        group.scheduler.submit(group.create_session([3 + index, 5, 7, 11][: 2 + index % 3], settings))
    return group


def test_a_step_has_one_payload_per_source_and_one_commit_of_each(group):
    plans = step_with_commits(group)
    sources = list(plans[0].commits_by_source)
    sent = group.payloads(plans)
    for rank, runner in enumerate(group.runners):
        transfer = CountingTransfer(rank, sent, set())
        commit = Mock(wraps=CALLS["commit_rows"])
        with patch.dict(CALLS, commit_rows=commit):
            runner.execute(plans[rank], transfer)
        assert transfer.calls == [sources]
        assert commit.call_count == len(sources)
    group.agreed_checksums()


def test_a_payload_that_does_not_arrive_leaves_every_slot_as_it_was(group):
    plans = step_with_commits(group)
    before, sent = group.agreed_checksums(), group.payloads(plans)

    class LostPeer(InProcessTransfer):
        def broadcast(self, payloads: Mapping[int, Tensor]) -> None:
            super().broadcast(payloads)
            raise TransferError("a peer was lost after it had sent some")

    for rank, runner in enumerate(group.runners):
        with pytest.raises(TransferError):
            runner.execute(plans[rank], LostPeer(rank, sent, set()))
    assert group.agreed_checksums() == before
    group.evaluate(plans)
    assert group.agreed_checksums() != before


def test_a_source_that_has_committed_already_sends_the_same_payload(group):
    plans = step_with_commits(group)
    before = {source: payload.clone() for source, payload in group.payloads(plans).items()}
    group.evaluate(plans)
    after = group.payloads(plans)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[source], after[source]) for source in before)
