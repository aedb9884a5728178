"""Sub-blocks and their cache, against Fast-dLLM v2's published loop, written down here from plain tensors."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.errors import SettingsError
from lopa_ray.model.checkpoint.config_files import load_config
from lopa_ray.model.transformer import Transformer
from support.checkpoints import edit_json, load, logits, refused
from support.fake_model import VOCABULARY, FakeModel
from support.paths import MODELS
from support.settings_strategies import FAKE_MODELS, MASK, PROMPTS, any_block_diffusion
from support.tiny_model import tiny_engine

KeysValues = list[tuple[Tensor, Tensor]]
"""Per layer."""


def joined(past: KeysValues, more: KeysValues) -> KeysValues:
    return [(torch.cat((k, a)), torch.cat((v, b))) for (k, v), (a, b) in zip(past, more, strict=True)]


class Published:
    """The loop of `Fast_dLLM_QwenForCausalLM.generate` for one prompt, without any of this project's decoding.

    Where it differs from the published one: a prompt of exactly one block is cached too (there it is forgotten), the
    mask token is never chosen, and the call that would cache the last block is left out. A model whose logits are
    not shifted reads its own rows, and caches a block without deciding a token.
    """

    def __init__(self, model: Transformer, wanted: BlockDiffusionSettings) -> None:
        self.model, self.wanted = model, wanted
        self.fills: list[list[int]] = []
        """Positions per call."""

    def forward(
        self, ids: list[int], past: KeysValues, block: KeysValues | None = None, offset: int = 0
    ) -> tuple[Tensor, KeysValues]:
        """Logits [len(ids), V] behind `past`, and K/V of `ids`, or of all of `block` with `ids` put in at `offset`."""
        seen = len(past[0][0]) if past else 0
        keys_values: KeysValues = []

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if block is not None:
                (old_k, old_v), end = block[layer], offset + len(k)
                k = torch.cat((old_k[:offset], k, old_k[end:]))
                v = torch.cat((old_v[:offset], v, old_v[end:]))
            keys_values.append((k, v))
            if past:
                k, v = torch.cat((past[layer][0], k)), torch.cat((past[layer][1], v))
            rows, columns = torch.arange(len(q)) + seen + offset, torch.arange(len(k))
            size = self.wanted.block_size
            sees = columns[None, :] // size <= rows[:, None] // size
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, sees, enable_gqa=True)[0].transpose(0, 1)

        with torch.inference_mode():
            positions = torch.arange(len(ids)) + seen + offset
            logits: Tensor = self.model.lm_head(self.model(torch.tensor(ids), positions, attend))
            logits[:, self.model.config.mask_token_id] = -torch.inf
        return logits, keys_values

    def shifted(self, logits: Tensor) -> Tensor:
        return torch.cat((logits[:1], logits[:-1])) if self.model.config.shifted else logits

    def generate(self, prompt: list[int]) -> list[int]:
        """Ids after the prompt, up to the first end."""
        wanted, mask = self.wanted, self.model.config.mask_token_id
        size, part = wanted.block_size, wanted.sub_block_size
        assert part is not None
        x, past, end = list(prompt), KeysValues(), len(prompt) + wanted.max_new_tokens
        if len(x) >= size:
            logits, past = self.forward(x[: len(x) // size * size], [])
            self.next_token(x, logits)
        while len(x) < end and not self.ended(x[len(prompt) :]):
            x += [mask] * (min(size - len(x) % size, end - len(x)))
            begin = (len(x) - 1) // size * size
            block: KeysValues | None = None
            for start in range(begin, len(x), part):
                span = slice(start, min(start + part, len(x)))
                while mask in x[span] and not self.ended(x[len(prompt) :]):
                    if wanted.sub_block_cache and block is not None and x[start] != mask:
                        logits, block = self.forward(x[span], past, block, start - begin)
                        logits = self.shifted(logits)
                    else:
                        logits, block = self.forward(x[begin:], past)
                        logits = self.shifted(logits)[span.start - begin : span.stop - begin]
                    self.fill(x, span, logits)
            if len(x) < end and mask not in x and not self.ended(x[len(prompt) :]):
                logits, stored = self.forward(x[begin:], past)
                past = joined(past, stored) if past else stored
                self.next_token(x, logits)
        answer, stop = x[len(prompt) :], self.model.config.eos_token_id
        return answer[: answer.index(stop) + 1] if self.ended(answer) else answer

    def ended(self, answer: list[int]) -> bool:
        """All before the first stop token is decided."""
        stop, mask = self.model.config.eos_token_id, self.model.config.mask_token_id
        return not self.wanted.ignore_eos and stop in answer and mask not in answer[: answer.index(stop)]

    def fill(self, x: list[int], span: slice, logits: Tensor) -> None:
        """All of a sub-block above the threshold, and always the surest."""
        probabilities, tokens = logits.softmax(-1).max(-1)
        masked = torch.tensor(x[span]) == self.model.config.mask_token_id
        probabilities = probabilities.where(masked, -torch.inf)
        chosen = probabilities > self.wanted.confidence_threshold
        chosen[probabilities.argmax()] = True
        for at in chosen.nonzero().flatten().tolist():
            x[span.start + at] = int(tokens[at])
        self.fills.append([span.start + at for at in chosen.nonzero().flatten().tolist()])

    def next_token(self, x: list[int], logits: Tensor) -> None:
        """The call that caches blocks decides the token behind them, unless that is the prompt's."""
        decides = self.model.config.shifted and len(x) % self.wanted.block_size == 0
        self.fills.append([len(x)] if decides else [])
        if decides:
            x.append(int(logits[-1].argmax()))


LAYOUTS = ["dream-tiny-4l", "dream-tiny-2l-eos", "sdar-tiny-3l"]
LENGTHS = (3, 16, 21, 32)
"""Lengths of prompts: less than a block of 16, exactly one, one and a part, two."""

SUB_BLOCKS = BlockDiffusionSettings(max_new_tokens=43, block_size=16, sub_block_size=4)


def prompts(model: str) -> list[list[int]]:
    draw = torch.Generator().manual_seed(len(model))
    return [torch.randint(0, 120, (length,), generator=draw).tolist() for length in LENGTHS]


def decode(model: str, wanted: BlockDiffusionSettings) -> list[GenerationResult]:
    return tiny_engine(model).generate(prompts(model), wanted, trace=True)


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("threshold", [0.3, 0.9])
@pytest.mark.parametrize("model", LAYOUTS)
def test_sub_blocks_decode_as_published(model: str, threshold: float, stored: bool) -> None:
    wanted = SUB_BLOCKS.replace(
        sub_block_cache=stored, confidence_threshold=threshold, ignore_eos=not model.endswith("eos")
    )
    for prompt, result in zip(prompts(model), decode(model, wanted), strict=True):
        published = Published(tiny_engine(model).runner.model, wanted)
        assert result.token_ids == published.generate(prompt)
        assert [[p for p, _ in step.fills] for step in result.trace] == published.fills
        assert threshold == 0.9 or max(map(len, published.fills)) > 1


@pytest.mark.parametrize("model", ["dream-tiny-4l", "sdar-tiny-3l"])
def test_the_cache_saves_rows_and_drops_no_fork(model: str) -> None:
    def rows(result: GenerationResult) -> int:
        return sum(step.branches[0].stop - step.input_start for step in result.trace)

    wanted = SUB_BLOCKS.replace(ignore_eos=True)
    for whole, parts in zip(
        decode(model, wanted), decode(model, wanted.replace(sub_block_cache=True)), strict=True
    ):
        assert rows(parts) < rows(whole)
    ahead = wanted.replace(sub_block_cache=True, num_branches=4)
    won = 0
    for result in decode(model, ahead):
        for step in result.trace:
            assert not (step.kept and len(step.branches) > 1)
            won += len(step.branches[step.winner].fills)
    assert won > 0


@settings(max_examples=80)
@given(PROMPTS, any_block_diffusion(), FAKE_MODELS)
def test_a_sub_block_is_filled_before_the_next(prompt, wanted, model):
    """And a call on it alone reads all of the block around it."""
    size, part = wanted.block_size, wanted.sub_block_size
    if part is None:
        return
    vocabulary = replace(VOCABULARY, shifted=len(prompt) % 2 == 0)
    session = new_session(prompt, wanted, vocabulary)
    while not session.finished:
        plan = session.plan()
        if plan.branches[0].scored:
            block = range(plan.branches[0].scored.start // size * size, session.max_len)[:size]
            spans = {(p - block.start) // part for p in plan.branches[0].scored}
            assert len(spans) == 1
            before = range(max(block.start, len(prompt)), plan.branches[0].scored.start)
            assert MASK not in session.generated[before.start - len(prompt) : before.stop - len(prompt)]
            branch = plan.branches[0]
            if (
                wanted.sub_block_cache
                and branch.stop - plan.start < len(block)
                and not plan.branches[0].to_stage
            ):
                fed = set(range(plan.start, branch.stop))
                assert set(plan.branches[0].scored) <= fed
                assert {p for span in plan.cached for p in span} == set(range(block.stop)) - fed
                assert branch.segments == ((branch.stop, block.stop),)
        if plan.branches[0].to_stage:
            assert plan.stage_shared and len(plan.branches) == 1
        session.advance(model.reports(plan))


def test_a_call_on_the_whole_block_is_made_while_the_first_position_is_masked():
    """The row that decides it is not in the sub-block."""
    wanted = SUB_BLOCKS.replace(sub_block_cache=True, remasking="sequential", ignore_eos=True)
    session = new_session([1, 2], wanted, replace(VOCABULARY, shifted=True))
    model, calls = FakeModel(), []
    while not session.finished and len(calls) < 15:
        plan = session.plan()
        calls.append((plan.start, len(plan.canvas), bool(plan.branches[0].to_stage)))
        session.advance(model.reports(plan))
    first = [(0, 16, True), (0, 4, False)]
    others = [call for start in (4, 8, 12) for call in [(0, 16, True), *[(start, 4, False)] * 3]]
    assert calls == [*first, *others, (0, 17, True)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sub_block_size": 5}, "sub_block_size: got 5; allowed: a divisor of block_size"),
        ({"sub_block_cache": True}, "sub_block_cache without sub_block_size"),
        ({"sub_block_size": 4, "fuse_store": True}, "fuse_store with sub_block_size"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        BlockDiffusionSettings(block_size=16, **changes)


def test_a_published_folder_loads_without_a_mask_token_in_its_config(tmp_path: Path) -> None:
    """Its code has the id as a constant. The tensors are those of Qwen2.5, which Dream shares."""
    folder = Path(shutil.copytree(MODELS / "dream-tiny-2l", tmp_path / "model"))
    edit_json(
        folder / "config.json",
        model_type="Fast_dLLM_Qwen",
        architectures=["Fast_dLLM_QwenForCausalLM"],
        bd_size=32,
        mask_token_id=...,
    )
    edit_json(folder / "generation_config.json", mask_token_id=...)
    refused(folder, "got no mask_token_id", "generation_config.json")
    edit_json(folder / "config.json", mask_token_id=127)
    model = load(folder)
    assert (model.config.family, model.config.shifted, model.config.qkv_bias) == ("fast_dllm_v2", True, True)
    ids = [1, 2, 127]
    assert torch.equal(logits(model, ids), logits(load(MODELS / "dream-tiny-2l"), ids))
    assert load_config(folder) == model.config
