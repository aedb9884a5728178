"""Draft heads: beams against a search in Python, tokens of self-speculation against those without a head, and files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from lopa_ray.decoding.decoders import joint_speculation
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.decoding.result import GenerationResult
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.errors import CheckpointError
from lopa_ray.model.draft_head import DraftHead
from support.draft_heads import with_random_head
from support.paths import GOLDEN

TINY = GOLDEN / "models" / "llama-tiny-2l"
LENGTH = 24

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_random_head(TINY, tmp_path_factory.mktemp("head") / "model")


def engine_of(folder: Path) -> LocalEngine:
    model = {"path": str(folder), "max_num_seqs": 4, "max_model_len": 128}
    return LocalEngine.from_config(Config.load("demo", {"model": model}))


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> LocalEngine:
    return engine_of(checkpoint)


def head_of(engine: LocalEngine) -> DraftHead:
    head = engine.runner.model.draft_head  # type: ignore[attr-defined]
    assert isinstance(head, DraftHead)
    return head


def generated(engine: LocalEngine, prompt: list[int], chosen: SelfSpeculationSettings) -> GenerationResult:
    ((_, result),) = engine.run([engine.create_session(prompt, chosen)])
    assert isinstance(result, GenerationResult)
    return result


def searched(
    head: DraftHead, embed: torch.nn.Embedding, hidden: Tensor, token: int, beams: int, depth: int
) -> list[list[int]]:
    """The most probable sequences, extended one token at a time."""
    kept = [([], 0.0, hidden)]
    for _ in range(depth):
        longer = []
        for tokens, logprob, row in kept:
            last = torch.tensor([tokens[-1] if tokens else token])
            following = head.advance(row, embed(last))
            logprobs = head.score(following).log_softmax(-1)[0].tolist()
            longer += [
                ([*tokens, head.tokens[at].item()], logprob + of_token, following)
                for at, of_token in enumerate(logprobs)
            ]
        kept = sorted(longer, key=lambda beam: -beam[1])[:beams]
    return [tokens for tokens, _, _ in kept]


@torch.inference_mode()
def test_beams_are_what_a_search_finds(engine: LocalEngine) -> None:
    head, embed = head_of(engine), engine.runner.model.embed  # type: ignore[attr-defined]
    hidden = torch.randn(3, embed.weight.shape[1], generator=torch.Generator().manual_seed(5))
    tokens = torch.tensor([1, 7, 30])
    ids, probabilities = head(hidden, tokens, embed, 4, 3)
    for row in range(3):
        assert ids[row].tolist() == searched(head, embed, hidden[row : row + 1], tokens[row].item(), 4, 3)
    assert (probabilities.diff(dim=2) <= 0).all() and (probabilities[:, :, -1].diff(dim=1) <= 0).all()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompt=st.lists(st.integers(3, 60), min_size=1, max_size=9),
    block_size=st.integers(2, 9),
    num_branches=st.sampled_from([1, 2, 4, 6, "auto"]),
    temperature=st.sampled_from([0.0, 0.9]),
    length=st.integers(1, LENGTH),
)
def test_tokens_are_those_of_autoregressive_decoding(
    engine: LocalEngine,
    prompt: list[int],
    block_size: int,
    num_branches: int | str,
    temperature: float,
    length: int,
) -> None:
    drawn = {"max_new_tokens": length, "temperature": temperature, "seed": 7}
    plain = generated(engine, prompt, SelfSpeculationSettings(block_size=1, **drawn))
    drafted = generated(
        engine, prompt, SelfSpeculationSettings(block_size=block_size, num_branches=num_branches, **drawn)
    )
    assert drafted.token_ids == plain.token_ids and drafted.finish_reason == plain.finish_reason


def test_an_answer_that_repeats_itself_takes_fewer_steps(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiny models soon loop, and a random head is sure of what is wrong."""
    chosen = SelfSpeculationSettings(max_new_tokens=60, block_size=4, num_branches=2, stop_at_eos=False)
    looked_up = generated(engine, [5, 6, 7], chosen)
    monkeypatch.setattr(joint_speculation, "repeated_beam", lambda ids, most: [])
    plain = generated(engine, [5, 6, 7], chosen)
    assert looked_up.token_ids == plain.token_ids and looked_up.steps < 0.6 * plain.steps


def knowing(answer: list[int], right_beam: int) -> Callable[..., tuple[Tensor, Tensor]]:
    """A head that knows the answer, in one of its beams, wherever a token stands only once in it."""

    def forward(hidden: Tensor, tokens: Tensor, _: object, beams: int, depth: int) -> tuple[Tensor, Tensor]:
        ids = torch.zeros(len(tokens), beams, depth, dtype=torch.int64)
        ids[:] = torch.arange(beams)[:, None]
        for row, token in enumerate(tokens.tolist()):
            after = answer[answer.index(token) + 1 :][:depth] if token in answer else []
            ids[row, right_beam, : len(after)] = torch.tensor(after, dtype=torch.int64)
        return ids, torch.full(ids.shape, 0.2)

    return forward


@pytest.mark.parametrize(("num_branches", "right_beam", "tokens_per_step"), [(1, 0, 6), (4, 3, 6), (2, 1, 6)])
def test_right_drafts_are_taken_from_the_row_after_the_accepted_tokens(
    engine: LocalEngine,
    monkeypatch: pytest.MonkeyPatch,
    num_branches: int,
    right_beam: int,
    tokens_per_step: int,
) -> None:
    drawn = {"max_new_tokens": LENGTH, "stop_at_eos": False, "temperature": 8.0}
    for seed in range(100):
        plain = generated(engine, [5, 2], SelfSpeculationSettings(block_size=1, seed=seed, **drawn))
        if len(set(plain.token_ids)) == LENGTH:
            break
    else:
        pytest.fail("no answer without a repeated token")
    monkeypatch.setattr(head_of(engine), "forward", knowing(plain.token_ids, right_beam))
    drafted = generated(
        engine,
        [5, 2],
        SelfSpeculationSettings(block_size=6, num_branches=num_branches, seed=seed, **drawn),
    )
    assert drafted.token_ids == plain.token_ids
    assert drafted.steps == 1 + -(-(LENGTH - 1) // tokens_per_step)


def test_a_head_may_have_fewer_tokens_than_beams(engine: LocalEngine, tmp_path: Path) -> None:
    small = with_random_head(TINY, tmp_path / "small")
    file = small / "draft_head.safetensors"
    save_file({**load_file(file), "tokens": torch.tensor([3, 7])}, file)
    chosen = SelfSpeculationSettings(block_size=5, num_branches=4, max_new_tokens=LENGTH)
    assert (
        generated(engine_of(small), [5, 2], chosen).token_ids == generated(engine, [5, 2], chosen).token_ids
    )
    save_file({**load_file(file), "tokens": torch.zeros(0, dtype=torch.int64)}, file)
    with pytest.raises(CheckpointError, match="another model's draft head"):
        engine_of(small)


def test_a_head_of_another_model_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    other = with_random_head(TINY, tmp_path / "other")
    file = other / "draft_head.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "project.weight": tensors["project.weight"][:, :-1].contiguous()}, file)
    with pytest.raises(CheckpointError, match="another model's draft head"):
        engine_of(other)
    save_file({**tensors, "tokens": tensors["tokens"] + 10**6}, file)
    with pytest.raises(CheckpointError, match="another model's draft head"):
        engine_of(other)
    file.write_bytes(b"no tensors")
    with pytest.raises(CheckpointError, match="no draft head"):
        engine_of(other)
