"""Record decodes of Fast-dLLM v2's published code on the tiny models of tests/golden.

`python tests/record/fast_dllm_v2.py FOLDER > tests/golden/fast_dllm_v2/fast_dllm_v2_generate_cases.jsonl`

FOLDER has `configuration.py` and `modeling.py` of a published checkpoint (Efficient-Large-Model/Fast_dLLM_v2_1.5B).
They need transformers 4.53.1, the release that the checkpoint names: later ones have no `key_cache`, and the code then
appends to a cache where it means to replace. A row is kept if float32, float64 and slightly changed weights decode the
same, and if no decision was closer than `MARGIN`.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file

MODELS = Path(__file__).parents[1] / "golden" / "models"
NAMES = ("dream-tiny-2l", "dream-tiny-4l", "dream-tiny-2l-eos")
MASK, EOS = 127, 126
MARGIN = 4e-5
ROWS_PER_KIND = 16
PERTURBATION = 2e-6


def published(folder: Path) -> tuple[ModuleType, ModuleType]:
    """Configuration and model, as the checkpoint's own code."""
    sys.path.insert(0, str(folder.resolve().parent))
    name = folder.resolve().name
    return importlib.import_module(f"{name}.configuration"), importlib.import_module(f"{name}.modeling")


def load(code: tuple[ModuleType, ModuleType], name: str) -> Any:
    """A tiny model of Dream's layout, whose tensors are named as Fast-dLLM v2's."""
    values = json.loads((MODELS / name / "config.json").read_text(encoding="utf-8"))
    for key in ("architectures", "auto_map", "model_type", "torch_dtype", "mask_token_id"):
        del values[key]
    model = code[1].Fast_dLLM_QwenForCausalLM(code[0].Fast_dLLM_QwenConfig(**values)).eval()
    model.load_state_dict(load_file(MODELS / name / "model.safetensors"))
    return model


class Recorder:
    """One `generate`: every call of the model, what it filled, and how close its decisions were."""

    def __init__(self, model: Any, prompt: list[int], settings: dict[str, Any]) -> None:
        self._prompt, self._threshold = prompt, settings["threshold"]
        self._model, self._frame = model, None
        self._states: list[list[int]] = []
        self._probabilities: list[dict[int, float]] = []
        self.windows: list[list[int]] = []
        self.margin = float("inf")
        forward, sample = model.forward, model.sample_with_top_p
        model.forward, model.sample_with_top_p = self._forward(forward), self._sample(sample)
        try:
            ids = model.generate(torch.tensor([prompt]), mask_id=MASK, stop_token=EOS, **settings)
        finally:
            del model.forward, model.sample_with_top_p
        self.tokens: list[int] = ids[0, len(prompt) :].tolist()
        self._states.append(self._canvas())

    def _canvas(self) -> list[int]:
        """Prompt and answer as `generate` has them in its present call, or had at its end."""
        assert self._frame is not None
        values = self._frame.f_locals
        return list(values.get("x_t", values["input_ids"])[0].tolist())

    def _forward(self, forward: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self._frame = sys._getframe(1)
            past = named.get("past_key_values")
            begin = (0 if past is None else past.get_seq_length()) + (named.get("replace_position") or 0)
            self.windows.append([begin, named["input_ids"].shape[1]])
            self._states.append(self._canvas())
            self._probabilities.append({})
            return forward(*arguments, **named)

        return call

    def _sample(self, sample: Any) -> Any:
        def call(logits: Any, **named: Any) -> Any:
            values = sys._getframe(1).f_locals
            tokens, probabilities = sample(logits, **named)
            end = len(values["x_t"][0]) if values["end"] is None else len(values["x_t"][0]) + values["end"]
            begin = len(values["x_t"][0]) + values["start"]
            masked = [p - begin for p in range(begin, end) if values["x_t"][0, p] == MASK]
            two = probabilities[0].topk(2, -1).values
            best = sorted((float(two[at, 0]) for at in masked), reverse=True)
            self._probabilities[-1] = {begin + at: float(two[at, 0]) for at in masked}
            self.margin = min([self.margin, *(abs(value - self._threshold) for value in best)])
            self.margin = min([self.margin, *(float(two[at, 0] - two[at, 1]) for at in masked)])
            if len(best) > 1 and best[0] <= self._threshold:
                self.margin = min(self.margin, best[0] - best[1])
            return tokens, probabilities

        return call

    def fills(self) -> tuple[list[int], list[float | None]]:
        """Per position of the answer the call (from 1) that filled it, 0 for none, and how probable the token was."""
        answer = range(len(self._prompt), max(len(state) for state in self._states))
        calls, confidences = [0] * len(answer), [None] * len(answer)
        for call, (before, after) in enumerate(zip(self._states, self._states[1:], strict=False), 1):
            for at, p in enumerate(answer):
                was = before[p] if p < len(before) else MASK
                if was == MASK and p < len(after) and after[p] != MASK:
                    calls[at] = call
                    confidences[at] = self._probabilities[call - 1].get(p)
        return calls, [None if value is None else round(value, 6) for value in confidences]


def draw(rng: random.Random, name: str) -> tuple[list[int], dict[str, Any]]:
    """A prompt and settings of `generate`. A prompt of exactly one block is left out of all later calls there."""
    block = rng.choice([32, 32, 32, 16, 8])
    part = rng.choice([size for size in (2, 4, 8, 16, 32) if size <= block])
    length = rng.choice([length for length in (*range(1, 30), *range(33, 70), 64) if length != block])
    settings = {
        "max_new_tokens": rng.choice([block, 2 * block, 3 * block, 40, 70, 100]),
        "block_size": block,
        "small_block_size": part,
        "threshold": rng.choice([0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9, 1]),
        "use_block_cache": rng.random() < 0.5,
    }
    settings["max_new_tokens"] = max(block, settings["max_new_tokens"])
    return [rng.randrange(0, 120) for _ in range(length)], settings


def row(model: Any, name: str, prompt: list[int], settings: dict[str, Any]) -> dict[str, Any] | None:
    """What is recorded of one decode, or None if it does not decode the same in other precision."""
    torch.manual_seed(0)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    changed = {key: value * (1 + PERTURBATION * torch.randn_like(value)) for key, value in state.items()}
    runs = []
    for dtype, weights in ((torch.float32, state), (torch.float64, state), (torch.float32, changed)):
        model.to(dtype).load_state_dict(weights)
        run = Recorder(model, prompt, settings)
        runs.append(run)
    model.to(torch.float32).load_state_dict(state)
    first, double, _ = runs
    same = all(run.tokens == first.tokens and run.fills()[0] == first.fills()[0] for run in runs)
    if not same or double.margin < MARGIN or MASK in first.tokens:
        return None
    fill_step, fill_conf = first.fills()
    ended = EOS in first.tokens
    kind = "fast_dllm_v2_eos" if ended else "fast_dllm_v2" + "_cache" * settings["use_block_cache"]
    return {
        "kind": kind,
        "model": name,
        "prompt": prompt,
        "settings": settings,
        "tokens": first.tokens,
        "nfe": len(first.windows),
        "windows": first.windows,
        "fill_step": fill_step,
        "fill_conf": fill_conf,
        "min_margin": float(f"{double.margin:.3g}"),
    }


def main() -> None:
    """Print the rows."""
    torch.set_num_threads(1)
    code, rng = published(Path(sys.argv[1])), random.Random(20261129)
    models = {name: load(code, name) for name in NAMES}
    counts: dict[str, int] = dict.fromkeys(("fast_dllm_v2", "fast_dllm_v2_cache", "fast_dllm_v2_eos"), 0)
    tried = 0
    while min(counts.values()) < ROWS_PER_KIND:
        name = rng.choice(NAMES)
        recorded, tried = row(models[name], name, *draw(rng, name)), tried + 1
        if recorded is not None and counts[recorded["kind"]] < ROWS_PER_KIND:
            counts[recorded["kind"]] += 1
            print(json.dumps({"id": f"fdv2-{sum(counts.values()):03d}", **recorded}))
    print(f"{tried} decodes tried", file=sys.stderr)


if __name__ == "__main__":
    main()
