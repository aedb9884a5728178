"""Trajectories in the formats that trainers read: TraceRL's, JetEngine's, and SGLang's for DARE."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby, pairwise
from typing import Any

from lopa_ray.decoding.decoders import parse_decoder_settings
from lopa_ray.decoding.trajectory import Trajectory
from lopa_ray.errors import SettingsError
from lopa_ray.text.tokenizer import Tokenizer

DARE_CONTRACT_VERSION = 1  # of the fields of `dare_response`


def tracerl_rows(
    rollouts: Iterable[tuple[Trajectory, float | None]], tokenizer: Tokenizer
) -> tuple[list[dict[str, Any]], int]:
    """The rows of the JSON list that TraceRL's trainers read, of trajectories with their rewards (None: the row has
    none), and how many were refused: these trainers encode the text again, and prompt or response have other ids then.
    Special tokens are in the text; a map has the response's tokens, the end included."""
    rows: list[dict[str, Any]] = []
    refused = 0
    for trajectory, reward in rollouts:
        of_texts = trajectory.prompt_token_ids, trajectory.token_ids
        prompt, response = (tokenizer.decode(ids, skip_special_tokens=False) for ids in of_texts)
        if (tokenizer.encode_markup(prompt), tokenizer.encode_markup(response)) != of_texts:
            refused += 1
            continue
        row = {"prompt": prompt, "response": response, "step_map": trajectory.step_map}
        rows.append(row if reward is None else {**row, "reward": reward})
    return rows, refused


def jetengine_output(trajectory: Trajectory, tokenizer: Tokenizer) -> dict[str, Any]:
    """An output as JetEngine's `generate` returns it, of the answer alone. Raises SettingsError without entropies."""
    if trajectory.entropies is None:
        raise SettingsError(
            "trajectory: got no entropies, which JetEngine's outputs have; set it to entropies"
        )
    return {
        "text": tokenizer.decode(trajectory.token_ids, skip_special_tokens=False),
        "token_ids": trajectory.token_ids,
        "trajectory": trajectory.step_map,
        "logprobs": trajectory.logprobs,
        "entropies": trajectory.entropies,
    }


def dare_response(trajectory: Trajectory) -> dict[str, Any]:
    """An answer as SGLang returns it, with the fields of `meta_info` from which DARE replays it. Steps are counted from
    1 in each block. Raises SettingsError for an answer that no such fields describe: DARE's blocks are counted from
    position 0, and filled as a whole, one after the other, each position once."""
    attention = parse_decoder_settings(trajectory.settings).prompt_attention
    replay, size, first = trajectory.replay, attention.block_size, len(trajectory.prompt_token_ids)
    if attention.kind != "blocks":
        raise _refused("decoder", trajectory.decoder, "has blocks that begin behind the prompt, or none")
    if trajectory.edits:
        raise _refused("decoder", trajectory.decoder, "has edited tokens")
    if 0 in replay.step_map or not replay.stop:
        raise _refused(
            "stop_at_eos",
            "an answer",
            "has given or masked positions: set stop_at_eos to false, and give no tokens",
        )
    if (first + len(replay.token_ids)) % size or len(replay.token_ids) - replay.stop >= size:
        raise _refused(
            "max_new_tokens", "the answer", "does not end with the block of its end: change its length"
        )
    numbered = groupby(enumerate(replay.step_map, first), key=lambda item: item[0] // size)
    blocks = [[step for _, step in block] for _, block in numbered]
    if any(max(block) >= min(following) for block, following in pairwise(blocks)):
        raise _refused("decoder", trajectory.decoder, "has begun a block before the one before was finished")
    ranks = [{step: at for at, step in enumerate(sorted({*block}), 1)} for block in blocks]
    step_map = [rank[step] for block, rank in zip(blocks, ranks, strict=True) for step in block]
    return {
        "token_ids": replay.token_ids[: replay.stop],
        "meta_info": {
            "step_maps": step_map[: replay.stop],
            "dllm_replay_token_ids": replay.token_ids,
            "dllm_replay_step_maps": step_map,
            "dllm_stop_length": replay.stop,
            "dllm_replay_contract_version": DARE_CONTRACT_VERSION,
        },
    }


def _refused(setting: str, what: str, why: str) -> SettingsError:
    return SettingsError(f"{setting}: DARE cannot replay this: {what} {why}", setting=setting)
