"""S2D2: what is its own beside the recorded decodes."""

from __future__ import annotations

from lopa_ray.decoding.decoders import new_session
from lopa_ray.decoding.decoders.block_diffusion import BlockDiffusionSettings
from lopa_ray.decoding.decoders.s2d2 import S2D2Settings
from lopa_ray.decoding.session import DecodeSession
from lopa_ray.protocol.outcome import StepOutcome
from support.context_model import ContextModel

COMMON = {"max_new_tokens": 30, "block_size": 8, "denoising_steps": 4, "confidence_threshold": 0.8}


def outcomes(session: DecodeSession, *, restored: bool = False) -> list[StepOutcome]:
    model, found = ContextModel(seed=3), []
    while not session.finished:
        if restored:
            session = session.with_state(session.export_state(), ())
        found.append(session.advance(model.reports(session.plan())))
    return found


def s2d2(**values: object) -> DecodeSession:
    return new_session([5, 6, 7], S2D2Settings(**COMMON, **values), ContextModel().vocabulary)


def test_without_verification_it_is_block_diffusion() -> None:
    plain = new_session([5, 6, 7], BlockDiffusionSettings(**COMMON), ContextModel().vocabulary)
    never = s2d2(min_expected=99, causal_cache=False)
    assert [o.filled for o in outcomes(never)] == [o.filled for o in outcomes(plain)]


def test_a_verified_step_fills_what_the_schedule_asks_for_and_depends_on_the_seed() -> None:
    steps = outcomes(s2d2(min_expected=0))
    verifying = [outcome for outcome in steps if outcome.filled]
    assert len(verifying) < len(steps)  # the others draft, or cache a block
    assert len(verifying[0].filled) >= 2
    answers = {outcomes(s2d2(min_expected=0, seed=seed))[-1].canvas for seed in range(4)}
    assert len(answers) > 1


def test_drafts_are_part_of_the_state() -> None:
    whole, restored = (outcomes(s2d2(min_expected=0), restored=restored) for restored in (False, True))
    assert [o.filled for o in restored] == [o.filled for o in whole]
