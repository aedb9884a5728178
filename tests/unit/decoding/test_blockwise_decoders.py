"""Vanilla, Fast-dLLM and block diffusion with real forwards: lookahead on top, fused stores, draws, ends."""

from __future__ import annotations

import pytest

from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders import DECODERS, new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.blockwise import BlockwiseSession
from lopa_ray.decoding.decoders.dmax import DMaxSettings
from lopa_ray.decoding.decoders.editing import EditingSettings
from lopa_ray.decoding.decoders.fast_dllm import FastDllmSettings
from lopa_ray.decoding.decoders.lopa import D2FSettings
from lopa_ray.decoding.decoders.multi_block import MultiBlockSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.vanilla import VanillaSettings
from lopa_ray.decoding.lookahead_settings import LookaheadSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.errors import SettingsError
from lopa_ray.protocol.vocabulary import Vocabulary
from support.fake_model import VOCABULARY, FakeModel
from support.fake_session import decode as fake_decode, let_forks_lose
from support.tiny_model import TINY_MODEL, tiny_engine

pytestmark = pytest.mark.medium

PROMPTS = [[5, 9, 2], list(range(40, 61))]
WHOLE = {"max_new_tokens": 32, "stop_at_eos": False, "ignore_eos": True}

BASES: dict[str, tuple[str, LookaheadSettings]] = {
    "vanilla Dream": ("dream-tiny-4l", VanillaSettings(**WHOLE)),
    "Dream, dual cache": ("dream-tiny-4l", FastDllmSettings(cache="dual", block_size=16, **WHOLE)),
    "LLaDA, prefix cache": ("llada-tiny-3l", FastDllmSettings(cache="prefix", block_size=16, **WHOLE)),
    "SDAR": ("sdar-tiny-3l", BlockDiffusionSettings(block_size=8, **WHOLE)),
    "sub-blocks, cached": (
        "dream-tiny-4l",
        BlockDiffusionSettings(block_size=16, sub_block_size=8, sub_block_cache=True, **WHOLE),
    ),
    "LLaDA2.1": ("llada21-tiny-3l", EditingSettings(block_size=16, **WHOLE)),
    "DMax": ("llada21-tiny-3l", DMaxSettings(block_size=16, confidence_threshold=0.9, **WHOLE)),
    "Nemotron": ("nemotron-tiny-3l", NemotronSettings(block_size=16, **WHOLE)),
    "several blocks": ("llada21-tiny-3l", MultiBlockSettings(block_size=8, **WHOLE)),
    "several blocks, edited": (
        "llada21-tiny-3l",
        MultiBlockSettings(block_size=8, editing_threshold=0.4, stability_threshold=0.5, **WHOLE),
    ),
}

LISTED = {type(settings) for _, settings in BASES.values()}
BASES |= {
    name: (TINY_MODEL.name, decoder.smallest.replace(num_branches=1, **WHOLE))
    for name, decoder in DECODERS.items()
    if issubclass(decoder.session, BlockwiseSession)
    and issubclass(decoder.settings, LookaheadSettings)
    and decoder.settings not in LISTED
    and decoder.takes("num_branches")
}


def decode(model: str, settings: GenerationSettings) -> list[GenerationResult]:
    return tiny_engine(model).generate(PROMPTS, settings, trace=True)


# A fork moves the distributions that KLASS waits for.
@pytest.mark.parametrize("name", [name for name in BASES if name != "klass"])
def test_lookahead_decides_more_per_step(name):
    """Every step that a fork wins adds a token, and a fork that fills a block's last mask needs none. DMax goes on
    after a block's last mask until its tokens stay, so there one answer may take as many steps as before."""
    model, settings = BASES[name]
    saves_in_each = not isinstance(settings, DMaxSettings)
    decoded = decode(model, settings), decode(model, settings.replace(num_branches=4))
    for plain, ahead in zip(*decoded, strict=True):
        assert len(ahead.token_ids) == len(plain.token_ids) == 32
        assert ahead.steps < plain.steps or (not saves_in_each and ahead.steps == plain.steps)
        assert ahead.tpf > plain.tpf or not saves_in_each
        won = [len(step.branches[step.winner].fills) for step in ahead.trace]
        assert sum(won) > 0
        assert all(len(step.branches) <= 4 for step in ahead.trace)
    plain_steps, steps = (sum(result.steps for result in results) for results in decoded)
    assert steps < plain_steps


@pytest.mark.parametrize("name", BASES)
def test_an_anchor_that_always_wins_is_plain_decoding(name, monkeypatch):
    """Forks that are evaluated and lose leave nothing behind: neither in the cache nor in the rule's schedule."""
    model, settings = BASES[name]
    plain = decode(model, settings)
    let_forks_lose(monkeypatch)
    losing = decode(model, settings.replace(num_branches=4))
    assert [r.token_ids for r in losing] == [r.token_ids for r in plain]
    assert [r.steps for r in losing] == [r.steps for r in plain]
    assert sum(r.forwards for r in losing) > sum(r.forwards for r in plain)


@pytest.mark.parametrize("branches", [1, 4])
def test_fused_stores_give_the_same_tokens_in_fewer_steps(branches):
    apart = BlockDiffusionSettings(num_branches=branches, **WHOLE)
    for one, two in zip(
        decode("sdar-tiny-3l", apart.replace(fuse_store=True)), decode("sdar-tiny-3l", apart), strict=True
    ):
        assert one.token_ids == two.token_ids
        stores = sum(step.kept > 0 for step in two.trace)
        assert one.steps == two.steps - stores
        assert stores >= 7


@pytest.mark.parametrize(
    ("model", "random"),
    [
        ("dream-tiny-2l", {"remasking": "random"}),
        ("llada-tiny-3l", {"remasking": "origin", "steps": 16}),
        ("dream-tiny-2l", {"alg_temp": 0.3, "steps": 16}),
        ("llada-tiny-3l", {"temperature": 0.9}),
    ],
)
def test_random_choices_follow_the_seed(model, random):
    def order(seed: int) -> list[list[tuple[tuple[int, int], ...]]]:
        results = decode(model, VanillaSettings(seed=seed, **random, **WHOLE))
        return [[step.fills for step in result.trace] for result in results]

    assert order(1) == order(1)
    assert order(1) != order(2)


def test_origin_fills_about_its_schedule_and_ends_with_it():
    settings = VanillaSettings(remasking="origin", steps=8, **WHOLE)
    for result in decode("dream-tiny-2l", settings):
        assert result.steps <= 8
        assert max(len(step.fills) for step in result.trace[:-1]) < 16


@pytest.mark.parametrize("kind", [D2FSettings, FastDllmSettings, BlockDiffusionSettings])
def test_stop_tokens_end_an_answer_like_eos(kind):
    """Those of the request (DiffuCoder stops on its PAD token) or of the checkpoint."""
    model = FakeModel(seed=3)
    plain = kind(max_new_tokens=40, stop_at_eos=True)

    def run(settings: GenerationSettings, vocabulary: Vocabulary) -> DecodeSession:
        session = new_session([1, 2], settings, vocabulary)
        while not session.finished:
            session.advance(model.reports(session.plan()))
        return session

    whole = run(plain, VOCABULARY)
    assert whole.finish_reason == "length"
    stop = whole.generated[17]
    of_checkpoint = Vocabulary(VOCABULARY.size, VOCABULARY.mask_token_id, VOCABULARY.eos_token_id, (stop,))
    for settings, vocabulary in (
        (plain.replace(stop_token_ids=(stop,)), VOCABULARY),
        (plain, of_checkpoint),
    ):
        session = run(settings, vocabulary)
        assert session.finish_reason == "stop"
        assert session.steps < whole.steps
        ignoring = run(settings.replace(ignore_eos=True), vocabulary)
        # The request's own stop tokens stay; the checkpoint's are ignored like its EOS.
        assert ignoring.generated == (session if settings.stop_token_ids else whole).generated
        late = settings.replace(min_tokens=5)
        assert new_session([1, 2], late, vocabulary).plan().sampling_params.stop_token_ids == (stop,)
        late = late.replace(ignore_eos=True)
        kept = new_session([1, 2], late, vocabulary).plan().sampling_params.stop_token_ids
        assert kept == settings.stop_token_ids
    for never in (VOCABULARY.size, VOCABULARY.mask_token_id, -1):
        with pytest.raises(SettingsError, match=f"stop_token_ids: got {never}"):
            new_session([1, 2], plain.replace(stop_token_ids=(stop, never)), VOCABULARY)


def test_a_schedule_for_more_than_there_is_costs_nothing():
    model, endless = FakeModel(), 2**31 - 1
    settings = BlockDiffusionSettings(
        max_new_tokens=4, block_size=endless, denoising_steps=endless, ignore_eos=True
    )
    session = new_session([1], settings, VOCABULARY)
    while not session.finished:
        session.advance(model.reports(session.plan()))
    assert session.finish_reason == "length"


def test_short_answers_take_fewer_passes_per_block():
    """At least 4 of 8 positions per pass: 2 passes, where there would be one for each."""
    one_each = BlockDiffusionSettings(
        max_new_tokens=8, block_size=8, confidence_threshold=1.0, fuse_store=True, ignore_eos=True
    )
    steps = [
        len(fake_decode([1] * 8, one_each.replace(minimal_topk=least), FakeModel())[1])
        for least in (None, 1, 4, 100)
    ]
    assert steps == [8, 8, 2, 1]
