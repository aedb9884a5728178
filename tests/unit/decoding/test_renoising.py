"""DiffusionGemma's decoder on its recorded model: settings that it refuses, its noise, and other requests beside it."""

from __future__ import annotations

import pickle
import random
from itertools import count
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from lopa_ray.decoding.decoders.renoising import RenoisingSettings, accepted
from lopa_ray.decoding.likelihood_session import LikelihoodSession
from lopa_ray.decoding.noise import SeededNoise
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import ProtocolError, SettingsError
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.protocol.plan import ScheduledRequest, StepPlan
from lopa_ray.protocol.plan_inputs import ConditionedInputs
from support.tiny_model import CANVAS_MODEL, load_canvas_model, tiny_engine

SETTINGS = RenoisingSettings(max_new_tokens=40, max_denoising_steps=6, entropy_bound=1.0, ignore_eos=True)


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return tiny_engine(CANVAS_MODEL.name)


@pytest.mark.medium
def test_the_seed_alone_decides_the_answer(engine: LocalEngine) -> None:
    prompts = [[5, 6, 7], [9] * 20, [5, 6, 7]]
    together = engine.generate(prompts, SETTINGS)
    assert together[0].token_ids == together[2].token_ids and len(together[0].token_ids) == 40
    for prompt, result in zip(prompts[:2], together, strict=False):
        (alone,) = engine.generate([prompt], SETTINGS)
        assert (alone.token_ids, alone.steps) == (result.token_ids, result.steps)
    (other,) = engine.generate(prompts[:1], SETTINGS.replace(seed=1))
    assert other.token_ids != together[0].token_ids


def test_the_last_canvas_needs_no_positions_of_max_model_len() -> None:
    with LocalEngine.from_pretrained(CANVAS_MODEL, max_model_len=24, max_num_seqs=1) as engine:
        (result,) = engine.generate([[5] * 7], SETTINGS.replace(max_new_tokens=17))
        assert len(result.token_ids) == 17


def test_log_probabilities_are_those_of_the_most_likely_token(engine: LocalEngine) -> None:
    settings = SETTINGS.replace(max_new_tokens=16, top_logprobs=2)
    (result,) = engine.generate([[5, 6, 7]], settings, trace=True)
    last = {d.position: d for step in result.trace for d in step.decided}
    assert [last[position].token for position in sorted(last)] == result.token_ids
    for decision in last.values():
        (first, second), (token, logprob) = decision.top_logprobs, (decision.token, decision.logprob)
        assert first == (token, logprob) and second[1] <= logprob <= 0
        assert 0 < decision.probability <= 1


def published_answers(
    monkeypatch: pytest.MonkeyPatch, prompt: list[int], draft: list[int], settings: RenoisingSettings
) -> list[int]:
    """What `generate` of transformers answers from `decoder_input_ids`, with the noise of the same seed."""
    size, noise = len(draft), SeededNoise(settings.seed, 128)
    canvases = (range(start, start + size) for start in count(len(prompt), size))
    state: dict[str, Any] = {"call": 0, "span": range(0), "begins": True}

    def randint(*_: Any, **__: Any) -> Tensor:
        if state["begins"]:
            state.update(span=next(canvases), begins=False)
            return torch.tensor([noise.first_canvas(state["span"])])
        return torch.tensor([noise.new_tokens(state["call"], state["span"])])

    def multinomial(probabilities: Tensor, num_samples: int) -> Tensor:
        state["call"] += 1
        drawn = torch.tensor(noise.draws(state["call"], state["span"]), dtype=torch.float64)[:, None]
        return (probabilities.double().cumsum(-1) <= drawn).sum(-1, keepdim=True)

    model = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(CANVAS_MODEL, dtype=torch.float32)
    encode = model.model.encoder.forward

    def begin_canvas(*args: Any, **options: Any) -> Any:
        state["begins"] = True
        return encode(*args, **options)

    with monkeypatch.context() as patched, torch.inference_mode():
        patched.setattr(torch, "randint", randint)
        patched.setattr(torch, "multinomial", multinomial)
        patched.setattr(model.model.encoder, "forward", begin_canvas)
        generated = model.eval().generate(
            torch.tensor([prompt]),
            decoder_input_ids=torch.tensor([draft]),
            max_new_tokens=settings.max_new_tokens,
            max_denoising_steps=settings.max_denoising_steps,
            sampler_config=transformers.models.diffusion_gemma.EntropyBoundSamplerConfig(
                entropy_bound=settings.entropy_bound
            ),
            eos_token_id=None,
            pad_token_id=None,
        )
    answer: list[int] = generated.sequences[0, len(prompt) :].tolist()
    return answer


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(4))
def test_a_draft_is_what_transformers_calls_decoder_input_ids(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw = random.Random(seed)
    prompt, draft = [[draw.randrange(2, 100) for _ in range(length)] for length in (5 + seed, 16)]
    settings = SETTINGS.replace(max_new_tokens=32, seed=seed)
    expected = published_answers(monkeypatch, prompt, draft, settings)
    (result,) = engine.generate([prompt], settings.replace(draft=draft), trace=True)
    assert result.token_ids == expected
    (other,) = engine.generate([prompt], settings)
    assert other.token_ids != expected


def test_noise_depends_on_seed_call_and_position_alone() -> None:
    noise, span = SeededNoise(3, 128), range(5, 4005)
    assert noise.new_tokens(2, span)[10:20] == noise.new_tokens(2, range(15, 25))
    values = [noise.first_canvas(span), noise.new_tokens(1, span), noise.new_tokens(2, span)]
    values += [SeededNoise(4, 128).new_tokens(1, span)]
    for tokens in values:
        assert min(tokens) == 0 and max(tokens) == 127
    assert len(set(values)) == len(values)
    draws = noise.draws(1, span), noise.draws(2, span)
    assert draws[0] != draws[1] and all(0.48 < sum(row) / len(row) < 0.52 for row in draws)


def test_the_most_certain_position_is_accepted_and_ties_go_by_position() -> None:
    assert accepted(torch.tensor([3.0, 2.0, 2.0]).numpy(), 0.0) == [1]
    assert accepted(torch.tensor([3.0, 2.0, 2.0]).numpy(), 2.0) == [1, 2]
    assert accepted(torch.tensor([3.0, 2.0, 2.0]).numpy(), 4.0) == [1, 2, 0]


def test_decoders_and_models_of_another_kind_are_refused(engine: LocalEngine) -> None:
    with pytest.raises(
        SettingsError, match=r"decoder: got lopa, which fills masks; .* use decoder renoising"
    ):
        engine.create_session([1, 2], decoder="lopa", max_new_tokens=9)
    with pytest.raises(
        SettingsError, match="decoder: got renoising, which is for models whose canvases begin"
    ):
        tiny_engine("dream-tiny-2l").create_session([1, 2], decoder="renoising", max_new_tokens=9)
    with pytest.raises(SettingsError, match="log-likelihoods: this model has no mask token"):
        LikelihoodSession([1, 2], [3], engine.vocabulary)


def test_a_slot_with_the_signals_of_another_step_is_noticed() -> None:
    model = load_canvas_model()
    runner = BranchRunner(model, max_num_seqs=1, max_model_len=64)
    session = tiny_engine(CANVAS_MODEL.name).create_session([5, 6, 7], SETTINGS)

    def run(plan):
        scheduled = ScheduledRequest(1, 0, plan, (0,))
        return [report for _, report in runner.execute(StepPlan(0, plan.step, (scheduled,))).reports]

    for _ in range(2):
        session.advance(run(session.plan()))
    plan = session.plan()
    assert plan.inputs == ConditionedInputs(2)
    runner.reconcile({0: 1}, ())  # what was staged is lost
    with pytest.raises(ProtocolError, match="nothing is staged for the commit of step 2"):
        run(plan)
    session = pickle.loads(pickle.dumps(session))
    object.__setattr__(plan, "commit", None)
    with pytest.raises(
        ProtocolError, match=r"has the self-conditioning of step \d; .* conditioned on step 2"
    ):
        run(plan)
