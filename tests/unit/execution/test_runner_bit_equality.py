"""On CPU in fp32 a request's scores have the same bits alone and in any company, on any workers."""

from __future__ import annotations

import copy
import dataclasses
import random
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.constraints.constraint import Constraint
from lopa_ray.constraints.constraint_builder import build_constraint
from lopa_ray.constraints.constraint_spec import ConstraintSpec
from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.dmax import DMaxSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import LopaSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.decoding.edits import PENALTIES
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.execution import lm_head
from lopa_ray.execution.lm_head import MAX_LOGITS_BYTES, TILE_ROWS, head_rows
from lopa_ray.execution.runner import BranchRunner
from lopa_ray.kernels.padding import ROW_MULTIPLE
from lopa_ray.model.implementation import implementation_of
from lopa_ray.model.linear import is_packed, pack
from lopa_ray.model.mask_predictor import MaskPredictor
from lopa_ray.model.transformers_models.config import parse_transformers_config
from lopa_ray.protocol.events import RequestFailure
from lopa_ray.protocol.vocabulary import Vocabulary
from support.in_process_group import InProcessGroup, ReportBytes, reference_reports, report_bytes
from support.settings_strategies import OTHER_VALUES, SAMPLING_VALUES
from support.tiny_model import load_tiny_model, random_model
from support.transformers_checkpoints import config_json

pytestmark = [pytest.mark.medium, pytest.mark.usefixtures("one_thread")]

SHAPES = {
    # hidden, heads, KV heads, head dim, MLP, vocabulary
    "grouped": (96, 6, 3, 16, 200, 1000),
    "odd": (42, 3, 3, 14, 111, 333),  # rows that are no multiple of 16 bytes
    "one-kv-head": (100, 5, 1, 20, 171, 777),
    "wide": (224, 4, 4, 56, 608, 512),
}


@cache
def model_of(name: str) -> MaskPredictor:
    """A recorded model or a shape; `+w8` and `+w8a8` make its linear layers int8, `+fp8` makes them fp8, and `+packed`
    packs them.
    `transformers:` comes before a model type of transformers, which then runs one of that type."""
    if name.startswith("transformers:"):
        text = config_json(name.removeprefix("transformers:"))
        by_transformers = parse_transformers_config(text, {}, name)
        implementation = implementation_of(by_transformers, torch.float32)
        return implementation.build_model(implementation.random_weights(0))
    if name.endswith("+packed"):
        model = copy.deepcopy(model_of(name.removesuffix("+packed")))
        pack(model, float32=True)
        if not is_packed(model, torch.float32):
            pytest.skip("packed products depend on other rows on this CPU")
        return model
    name, _, quantization = name.partition("+")
    if name not in SHAPES:
        return load_tiny_model(name, quantization or "none")
    hidden, heads, kv_heads, dim, mlp, vocab = SHAPES[name]
    config = dataclasses.replace(
        load_tiny_model().config,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        intermediate_size=mlp,
        vocab_size=vocab,
        num_layers=2,
        mask_token_id=vocab - 1,
        eos_token_id=vocab - 2,
        pad_token_id=None,
        bos_token_id=None,
    ).with_quantization(quantization or "none")
    model = random_model(config, 0, torch.float32, "cpu")
    for key, parameter in model.named_parameters():
        if key.endswith("scale") or (parameter.dim() == 2 and parameter.itemsize > 1):
            # Sharper, so that probabilities spread and several positions are filled.
            parameter.mul_(4)
    return model


LOGIT_CHANGES = {name: OTHER_VALUES[name] for name in (*PENALTIES, "logit_bias")}
LETTERS = "([ab]|c[de])*"


@cache
def constraint_of(vocabulary: Vocabulary) -> Constraint:
    """That of `LETTERS`, which several tokens write each."""
    automaton = ConstraintSpec(regex=LETTERS).automaton()
    assert automaton is not None
    texts = [bytes([97 + token % 8]) for token in range(vocabulary.size)]
    texts[vocabulary.mask_token_id] = texts[vocabulary.eos_token_id] = b""
    return build_constraint(automaton, texts, vocabulary.eos_token_id)


def any_settings(draw: random.Random) -> GenerationSettings:
    common: dict[str, Any] = {
        "max_new_tokens": draw.choice([3, 12, 25]),
        "block_size": draw.choice([1, 4, 8, 16]),
        "confidence_threshold": draw.choice([0.05, 0.2, 0.5]),
        "stop_at_eos": draw.random() < 0.5,
        **{name: value for name, value in (SAMPLING_VALUES | LOGIT_CHANGES).items() if draw.random() < 0.4},
        "ranking": draw.choice(["probability", "margin", "neg_entropy"]),
        "seed": draw.randrange(100),
    }
    if draw.random() < 0.2:
        return FastDllmSettings(**common)
    possible = {name: value for name, value in common.items() if name not in PENALTIES}
    if draw.random() < 0.2:
        return DMaxSettings(num_branches=draw.choice([1, 3]), **possible)
    if draw.random() < 0.2:
        return BlockDiffusionSettings(num_branches=draw.choice([1, 3]), **common)
    if draw.random() < 0.2:
        del possible["confidence_threshold"]
        return SelfSpeculationSettings(num_branches=draw.choice([1, 4]), **possible)
    return LopaSettings(
        num_branches=draw.choice([1, 2, 3, 6]),
        window_attention=draw.choice(["full", "block_causal"]),
        **common,
    )


def any_session(draw: random.Random, vocabulary: Vocabulary) -> DecodeSession:
    """Some have a constraint."""
    prompt = [draw.randrange(vocabulary.mask_token_id) for _ in range(draw.randint(1, 40))]
    settings = any_settings(draw)
    if "guided_regex" in settings.refused or draw.random() < 0.7:
        return new_session(prompt, settings, vocabulary)
    return new_session(prompt, settings.replace(guided_regex=LETTERS), vocabulary, constraint_of(vocabulary))


def compare(name: str, seed: int, requests: int = 5) -> int:
    """Random requests through a random group, each compared with itself alone; returns reports compared. The group may
    have fewer rows per call of the LM head."""
    draw, model = random.Random(seed), model_of(name)
    wanted: list[tuple[list[list[ReportBytes]], list[int]]] = []
    with patch.object(lm_head, "MAX_HEAD_ROWS", draw.choice([lm_head.MAX_HEAD_ROWS, ROW_MULTIPLE])):
        group = InProcessGroup(
            model, draw.choice([1, 2, 3]), max_num_seqs=draw.choice([1, 3, 5]), max_model_len=95
        )
    todo = [any_session(draw, group.runners[0].vocabulary) for _ in range(requests)]
    for session in todo:
        alone = copy.deepcopy(session)
        wanted.append((reference_reports(model, alone), alone.generated))
    numbers: dict[int, int] = {}
    compared = 0
    while todo or group.scheduler.busy:
        while todo and (draw.random() < 0.5 or not group.scheduler.busy):
            number = requests - len(todo)
            numbers[group.scheduler.submit(todo.pop(0))] = number
        plans = group.scheduler.plan(len(group.runners))
        reports = group.evaluate(plans)
        for step_report in reports:
            for request, report in step_report.reports:
                expected = wanted[numbers[request]][0][report.step - 1][report.branch]
                assert report_bytes(report) == expected, (
                    name,
                    seed,
                    numbers[request],
                    report.step,
                    report.branch,
                )
                compared += 1
        for event in group.scheduler.advance(reports):
            assert not isinstance(event, RequestFailure)
            if event.outcome.finish_reason:
                assert list(event.outcome.canvas) == wanted[numbers[event.request_key]][1]
        group.agreed_checksums()
    return compared


@pytest.mark.usefixtures("either_attention")
@pytest.mark.parametrize(
    "name",
    [
        "dream-tiny-2l-eos",
        "sdar-moe-tiny-3l",
        "llada2-tiny-3l+w8a8",
        "odd",
        "one-kv-head",
        "odd+fp8",
        "odd+packed",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                "llada2-tiny-3l",
                "llada2-tiny-3l+w8",
                "llada2-tiny-3l+fp8",
                "grouped",
                "wide",
                "odd+w8a8",
                "dream-tiny-2l-eos+packed",
                "wide+packed",
            )
        ),
    ],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_scores_have_the_same_bits_alone_and_in_company(name, seed):
    assert compare(name, seed) > 5


@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe", pytest.param("glm4_moe", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_scores_of_transformers_have_the_same_bits_alone_and_in_company(name, seed):
    """With an MLP as wide as a multiple of 16, as published ones are. How many rows an expert gets is of no account."""
    assert compare(f"transformers:{name}", seed) > 5


@pytest.mark.parametrize("name", ["dream-tiny-2l", "dream-tiny-2l+w8a8", "transformers:qwen3_moe"])
def test_scores_have_the_same_bits_with_two_threads(name):
    """Short: two threads that wait for a busy core are slow."""
    model = model_of(name)
    settings = LopaSettings(max_new_tokens=6, block_size=2, num_branches=2, confidence_threshold=0.5)
    runner = BranchRunner(model, max_num_seqs=1, max_model_len=16)
    one = reference_reports(model, new_session([5, 6, 7], settings, runner.vocabulary))
    torch.set_num_threads(2)
    assert reference_reports(model, new_session([5, 6, 7], settings, runner.vocabulary)) == one


@pytest.mark.parametrize(
    ("vocab_size", "rows"),
    [
        (100, 512),
        (152_064, 256),
        (262_144, 128),
        (2**26, ROW_MULTIPLE),
    ],
)
def test_the_logits_of_a_call_are_bounded(vocab_size, rows):
    assert head_rows(vocab_size) == rows
    assert rows % TILE_ROWS == 0 or rows < TILE_ROWS
    assert rows == ROW_MULTIPLE or rows * vocab_size * 4 <= MAX_LOGITS_BYTES


def test_single_phase_workers_agree_bit_for_bit_even_without_a_branch():
    """Three workers and one branch: two of them compute the finished blocks for themselves."""
    for name in ("dream-tiny-2l", "odd", "odd+w8a8", "odd+packed", "transformers:qwen3_moe"):
        for branches in (1, 2, 7):
            group = InProcessGroup(model_of(name), 3)
            settings = LopaSettings(
                max_new_tokens=24,
                block_size=4,
                num_branches=branches,
                window_attention="block_causal",
                confidence_threshold=0.3,
            )
            group.scheduler.submit(group.create_session([1, 2, 3, 4, 5], settings))
            lengths = set()
            while group.scheduler.busy:
                group.step()
                lengths.add(group.agreed_checksums()[0].spans)
            assert len(lengths) > 2
            assert not group.sources
