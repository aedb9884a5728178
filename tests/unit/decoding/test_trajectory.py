"""Trajectories: what decided each token, when, and with which probability."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import DECODERS
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.s2d2 import S2D2Settings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.decoding.decoders.self_verification import SelfVerificationSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.result import ResultBuilder
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.decoding.trajectory import Trajectory
from lopa_ray.kernels.sdpa import sdpa
from lopa_ray.protocol.outcome import Decision
from support.context_model import ContextModel
from support.fake_model import FakeModel
from support.fake_session import create_session
from support.given_answers import GIVEN, session_with
from support.settings_strategies import ANY_SETTINGS, FAKE_MODELS, PROMPTS
from support.tiny_model import CANVAS_MODEL, SETTINGS, tiny_engine
from support.verified_decode import CONTEXT_MODELS, any_verified

pytestmark = pytest.mark.medium


def trajectory_of(
    session: DecodeSession, model: ContextModel | FakeModel, *, restored: bool = False
) -> tuple[Trajectory, list[list[Decision]]]:
    """The trajectory of a decode, and the decisions of each of its steps of the rule, those of the pass before apart.
    `restored`: each state is taken over by another session, as after the loss of a group."""
    builder, steps = ResultBuilder(session), []
    while not session.finished:
        plan = session.plan()
        outcome = session.advance(model.reports(plan))
        builder.add_step(plan, outcome)
        steps += [[*outcome.adopted], *([*rule_step.filled] for rule_step in outcome.rule_steps)]
        session = session.with_state(session.export_state(), ()) if restored else session
    trajectory = builder.build(None, 1.0).trajectory
    assert trajectory is not None
    return trajectory, steps


@settings(max_examples=25)
@given(PROMPTS, any_verified(), CONTEXT_MODELS, st.booleans(), st.one_of(st.just({}), GIVEN))
def test_exact_drafts_have_the_trajectory_of_one_branch(
    prompt: list[int],
    wanted: LookaheadSettings,
    model: ContextModel,
    restored: bool,
    tokens: dict[int, int],
) -> None:
    wanted = wanted.replace(trajectory="entropies")
    alone, verified = (
        session_with(prompt, one, tokens, model.vocabulary) for one in (wanted.of_one_branch(), wanted)
    )
    of_one, _ = trajectory_of(alone, replace(model))
    together, _ = trajectory_of(verified, replace(model), restored=restored)
    assert together == of_one and of_one.on_policy


@settings(max_examples=60)
@given(PROMPTS, ANY_SETTINGS.filter(lambda wanted: wanted.decoder != "indel"), FAKE_MODELS)
def test_a_map_and_its_edits_rebuild_every_state(
    prompt: list[int], wanted: GenerationSettings, model: FakeModel
) -> None:
    """Step by step, what the rule has filled, edited and taken back."""
    session = create_session(prompt, wanted.replace(trajectory=True))
    mask = session.vocabulary.mask_token_id
    trajectory, steps = trajectory_of(session, model)
    replay, first = trajectory.replay, len(prompt)
    states, canvas = [], [mask] * len(replay.token_ids)
    for decisions in steps:
        at_once = [[one] for one in decisions] if wanted.decoder == "self_speculation" else [decisions]
        for decided in at_once:
            for one in decided:
                canvas[one.position - first] = one.token
            states.append(list(canvas))
    written = [(step, at, replay.token_ids[at]) for at, step in enumerate(replay.step_map) if step]
    written += [(edit.step, edit.index, edit.token_id) for edit in trajectory.edits]
    rebuilt = [mask] * len(canvas)
    for step in sorted({step for step, *_ in written}):
        for _, at, token in (one for one in written if one[0] == step):
            rebuilt[at] = token
        assert rebuilt in states
        states = states[states.index(rebuilt) :]
    assert rebuilt == canvas == replay.token_ids
    assert trajectory.token_ids == replay.token_ids[: len(trajectory.token_ids)]
    used = {*trajectory.replay.step_map, *(edit.step for edit in trajectory.edits)} - {0}
    assert used == {*range(1, len(used) + 1)}
    assert trajectory.block_map is None or trajectory.block_map == sorted(trajectory.block_map)
    assert Trajectory.from_dict(json.loads(json.dumps(asdict(trajectory)))) == trajectory


# With models

ENGINES = {"editing": "llada21-tiny-3l", "indel": "llada22-tiny-3l", "renoising": CANVAS_MODEL.name}
PROMPT = [(7 * at + 3) % 90 for at in range(9)]


@pytest.mark.parametrize("name", [*SETTINGS, "renoising"])
def test_asking_changes_no_token(name: str) -> None:
    wanted = SETTINGS.get(name, DECODERS["renoising"].smallest)
    engine = tiny_engine(ENGINES.get(wanted.decoder, "dream-tiny-2l"))
    plain = engine.generate(PROMPT, wanted.replace(trajectory=False))
    result = engine.generate(PROMPT, wanted.replace(trajectory="entropies"))
    trajectory = result.trajectory
    assert plain.trajectory is None and trajectory is not None
    assert (result.token_ids, result.steps) == (plain.token_ids, plain.steps)
    assert trajectory.token_ids == result.token_ids and trajectory.prompt_token_ids == PROMPT
    assert trajectory.entropies is not None
    lists = (trajectory.step_map, trajectory.logprobs, trajectory.raw_logprobs, trajectory.entropies)
    assert {len(values) for values in lists} == {len(result.token_ids)}
    assert max(trajectory.logprobs + trajectory.raw_logprobs) <= 0
    if wanted.decoder != "renoising" and not isinstance(wanted, SelfVerificationSettings):
        given = {at for at, step in enumerate(trajectory.step_map) if step == 0}
        assert all((entropy is None) == (at in given) for at, entropy in enumerate(trajectory.entropies))


SAMPLED: dict[str, Any] = {
    "max_new_tokens": 16,
    "temperature": 0.7,
    "top_k": 30,
    "top_p": 0.9,
    "seed": 5,
    "logit_bias": {3: 1.5, 5: -2.0},
    "ignore_eos": True,
    "trajectory": "entropies",
}
REPLAYED: dict[str, tuple[str, GenerationSettings]] = {
    "block diffusion": ("sdar-tiny-3l", BlockDiffusionSettings(**SAMPLED, block_size=4)),
    "block diffusion, drafts": (
        "sdar-tiny-3l",
        BlockDiffusionSettings(**SAMPLED, block_size=8, lookahead="verified", num_branches=6),
    ),
    "Dream": ("dream-tiny-2l", VanillaSettings(**SAMPLED, steps=8)),
    "Dream, greedy": ("dream-tiny-2l", VanillaSettings(max_new_tokens=16, steps=8, trajectory="entropies")),
    "LLaDA": ("llada-tiny-3l", VanillaSettings(**SAMPLED, block_size=8, steps=8)),
    "LLaDA, by threshold": (
        "llada-tiny-3l",
        FastDllmSettings(**SAMPLED, block_size=8, cache="none", confidence_threshold=0.3),
    ),
    "autoregressive": (
        "nemotron-tiny-3l",
        SelfSpeculationSettings(**SAMPLED, block_size=6, num_branches=3),
    ),
}


@torch.inference_mode()
def logits_of(engine: Any, ids: Sequence[int], sees: torch.Tensor) -> torch.Tensor:
    """Logits [R, V] of one forward over everything, in which row r sees the positions that `sees` [R, R] marks: with
    none of the project's packing, caches and scoring."""
    model = engine.runner.model

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return sdpa(q, k.transpose(0, 1), v.transpose(0, 1), mask=sees)

    hidden = model(torch.tensor(ids), torch.arange(len(ids)), attend)
    return torch.nn.functional.linear(hidden, model.lm_head.weight).float()


def drawn_from(row: torch.Tensor, wanted: Any, mask: int, *, half: bool) -> torch.Tensor:
    """Log-probabilities [V] of the tokens that may be drawn from a row of logits [V]."""
    row = row.clone()
    for token, bias in wanted.logit_bias.items():
        row[token] += bias
    row = (row.half().float() if half else row) / (wanted.temperature or 1)
    top_k_first = isinstance(wanted, BlockDiffusionSettings)
    for takes_top_k in (top_k_first, not top_k_first):
        if takes_top_k and wanted.top_k:
            row[row < row.topk(wanted.top_k).values[-1]] = -torch.inf
        elif not takes_top_k and wanted.top_p:
            ordered, index = row.softmax(-1).sort(descending=True)
            row[index[1:][ordered.cumsum(0)[:-1] > wanted.top_p]] = -torch.inf
    row[mask] = -torch.inf
    return row.log_softmax(-1)


@pytest.mark.parametrize("name", REPLAYED)
def test_a_forward_of_the_recorded_step_gives_the_log_probabilities(name: str) -> None:
    model, wanted = REPLAYED[name]
    engine = tiny_engine(model)
    trajectory = engine.generate(PROMPT, wanted).trajectory
    assert trajectory is not None and trajectory.on_policy and trajectory.entropies is not None
    mask, prompt, replay = engine.vocabulary.mask_token_id, trajectory.prompt_token_ids, trajectory.replay
    at = torch.arange(len(prompt) + len(replay.token_ids))
    seen, shift = torch.ones(len(at), len(at), dtype=torch.bool), int(engine.vocabulary.shifted)
    if isinstance(wanted, BlockDiffusionSettings):
        seen = at[:, None] // wanted.block_size >= at // wanted.block_size
    elif isinstance(wanted, SelfSpeculationSettings):
        seen, shift = at[:, None] >= at, 1
    for step in sorted({*trajectory.step_map}):
        pairs = zip(replay.token_ids, replay.step_map, strict=True)
        answer = [token if of_token < step else mask for token, of_token in pairs]
        logits = logits_of(engine, [*prompt, *answer], seen)
        for index in (index for index, of_token in enumerate(trajectory.step_map) if of_token == step):
            token, row = trajectory.token_ids[index], logits[len(prompt) + index - shift]
            raw = row.log_softmax(-1)[token].item()
            assert trajectory.raw_logprobs[index] == pytest.approx(raw, abs=1e-4)
            half = isinstance(wanted, VanillaSettings) and engine.vocabulary.shifted
            drawn = drawn_from(row, wanted, mask, half=half)
            assert trajectory.logprobs[index] == pytest.approx(drawn[token].item(), abs=1e-3)
            entropy = torch.special.entr(drawn.exp()).sum().item()
            assert trajectory.entropies[index] == pytest.approx(entropy, abs=1e-2)


COMPETING: dict[str, Any] = {"max_new_tokens": 16, "trajectory": True}
POLICIES: dict[str, tuple[GenerationSettings, bool]] = {
    "forks": (LopaSettings(**COMPETING, num_branches=3), False),
    "one branch": (LopaSettings(**COMPETING, num_branches=1), True),
    "exact drafts": (LopaSettings(**COMPETING, lookahead="verified"), True),
    "relaxed drafts": (LopaSettings(**COMPETING, lookahead="verified", acceptance=0.5), False),
    "guesses": (SelfSpeculationSettings(**COMPETING, num_branches=3), True),
    "drafts of another pass": (S2D2Settings(**COMPETING, min_expected=0.0), False),
}


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_no_sample_of_the_policy_says_so(name: str) -> None:
    wanted, on_policy = POLICIES[name]
    trajectory, _ = trajectory_of(create_session([1, 2, 3], wanted), FakeModel())
    assert trajectory.on_policy == on_policy
    assert trajectory.settings.get("num_branches", 1) == 1 or not on_policy


def test_guesses_and_autoregressive_decoding_have_one_trajectory() -> None:
    """Tokens that a causal pass decides have a step each, however many it takes at once."""
    asked: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.6, "trajectory": "entropies"}
    engine = tiny_engine("nemotron-tiny-3l")
    guessed = SelfSpeculationSettings(**asked, block_size=6)
    one, several = (engine.generate(PROMPT, guessed.replace(num_branches=n)) for n in (1, 4))
    alone = engine.generate(PROMPT, NemotronSettings(**asked, block_size=1)).trajectory
    assert several.trajectory == one.trajectory is not None and alone is not None
    assert one.trajectory.step_map == alone.step_map == [*range(1, len(alone.token_ids) + 1)]
    assert one.trajectory.raw_logprobs == pytest.approx(alone.raw_logprobs, abs=1e-4)


def test_given_tokens_have_no_step() -> None:
    given = ({"token_ids": [5]}, {"hole": 3, "token_ids": [9, 8]})
    wanted = LopaSettings(
        max_new_tokens=12, num_branches=1, given_parts=given, trajectory=True, ignore_eos=True
    )
    trajectory = tiny_engine("dream-tiny-2l").generate(PROMPT, wanted).trajectory
    assert trajectory is not None
    given_at = {0, 4, 5}
    assert {at for at, step in enumerate(trajectory.step_map) if step == 0} == given_at
    assert all(trajectory.raw_logprobs[at] == 0 == trajectory.logprobs[at] for at in given_at)


def test_what_stands_behind_the_stop_is_replayed() -> None:
    engine = tiny_engine("sdar-tiny-3l")
    wanted = BlockDiffusionSettings(max_new_tokens=20, block_size=8, trajectory=True, ignore_eos=True)
    ids = engine.generate(PROMPT, wanted).token_ids
    # The fourth token now ends the answer, in the middle of the second block.
    ended = engine.generate(PROMPT, wanted.replace(stop_token_ids=(ids[8],), stop_at_eos=False)).trajectory
    assert ended is not None and ended.replay.stop == ids.index(ids[8]) + 1
    assert (len(PROMPT) + len(ended.replay.token_ids)) % 8 == 0
    assert ended.block_map is not None and 0 not in ended.replay.step_map
