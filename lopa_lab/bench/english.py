"""`lopa bench english`: ways to decode the same model that writes English, prompt by prompt in turns."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

import torch

from lopa_lab.bench.decoding import results_of
from lopa_lab.bench.measurements import Measurements, Row
from lopa_lab.english_prompts import held_out_prompts
from lopa_ray.config.generation_settings import GenerationSettings
from lopa_ray.decoding.decoders.nemotron import NemotronSettings
from lopa_ray.decoding.decoders.self_speculation import SelfSpeculationSettings
from lopa_ray.engine.config import Config
from lopa_ray.engine.local import LocalEngine
from lopa_ray.execution.model_files import checkpoint_folder
from lopa_ray.text.tokenizer import require_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEED = 1
"""The seed of the prompts. No text that a model was trained on has their words."""

LOOP_WORDS, MOST_REPEATS = 4, 2
"""Words in a row that a sound answer does not say more often."""

_DOUBLED = re.compile(r"\b(\w+) \1\b", re.IGNORECASE)

Decode = Callable[[list[int]], tuple[list[int], int]]
"""The ids of a prompt → the ids of the answer, and the number of forwards."""


@dataclass(slots=True)
class Way:
    """One way to decode, and what came of it."""

    name: str
    decode: Decode
    answers: list[list[int]] = field(default_factory=list)
    forwards: int = 0
    seconds: float = 0.0

    def answer(self, prompt: list[int]) -> None:
        began = time.perf_counter()
        ids, forwards = self.decode(prompt)
        self.seconds += time.perf_counter() - began
        self.forwards += forwards
        self.answers.append(ids)


def is_sound(text: str, ended: bool) -> bool:
    """Whether an answer ends, doubles no word, and does not say the same four words more than twice."""
    words = text.lower().split()
    runs = Counter(zip(*(words[at:] for at in range(LOOP_WORDS)), strict=False))
    return ended and not _DOUBLED.search(text) and max(runs.values(), default=0) <= MOST_REPEATS


def measure_english(
    config: Config, prompts: int, branches: Sequence[int | str], max_new_tokens: int
) -> Measurements:
    """Answers to held-out prompts: autoregressive decoding by this engine and by transformers, and self-speculation
    with the settings of `config` and so many branches. Raises SettingsError, and what engines raise."""
    from transformers import AutoModelForCausalLM  # not needed by other benchmarks

    folder = checkpoint_folder(config.model, weights=True)
    with LocalEngine.from_config(config) as engine, torch.inference_mode():
        tokenizer = require_tokenizer(engine.tokenizer)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=engine.runner.model.embed.weight.dtype)
        judge = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        end = engine.vocabulary.eos_token_id

        def by(settings: GenerationSettings) -> Decode:
            def decode(prompt: list[int]) -> tuple[list[int], int]:
                (result,) = results_of(engine, [engine.create_session(prompt, settings)])
                return list(result.token_ids), result.steps

            return decode

        def by_transformers(prompt: list[int]) -> tuple[list[int], int]:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_new_tokens, do_sample=False
            )
            answer = out[0, len(prompt) :].tolist()
            return answer, len(answer)

        speculating = config.decode.replace(max_new_tokens=max_new_tokens)
        assert isinstance(speculating, SelfSpeculationSettings)
        reference = Way("autoregressive", by(NemotronSettings(block_size=1, max_new_tokens=max_new_tokens)))
        ways = [
            reference,
            Way("transformers' generate", by_transformers),
            *(
                Way(f"self-speculation, {count} branches", by(speculating.replace(num_branches=count)))
                for count in branches
            ),
        ]
        texts = held_out_prompts(SEED, prompts)
        asked = [tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in texts]
        for way in ways:
            way.decode(asked[0])  # compiles, allocates, and fills caches
        for prompt in asked:
            for way in ways:
                way.answer(prompt)
        nats = cache(partial(_nats, judge))  # many ways give the same text
        rows: list[Row] = []
        for way in ways:
            tokens = sum(map(len, way.answers))
            sound = [is_sound(tokenizer.decode(ids), ids[-1:] == [end]) for ids in way.answers]
            same = [ids == other for ids, other in zip(way.answers, reference.answers, strict=True)]
            rows.append(
                {
                    "way": way.name,
                    "tokens/s": tokens / way.seconds,
                    "TPF": tokens / way.forwards,
                    "same text %": 100 * sum(same) / len(same),
                    "sound %": 100 * sum(sound) / len(sound),
                    "nats per token": sum(map(nats, map(tuple, asked), map(tuple, way.answers))) / tokens,
                }
            )
    return Measurements(
        ("way",),
        rows,
        f"{prompts} held-out prompts, one at a time, all ways in turns, {torch.get_num_threads()} threads, "
        f"{config.model.dtype}, at most {max_new_tokens} tokens, greedy. tokens/s: of all answers, by wall time, with "
        "the prompts. same text: as autoregressive decoding by this engine. sound: the answer ends, doubles no word, "
        "and has no four words more than twice. nats per token: of the answers under the unchanged model, in fp32.",
    )


def _nats(judge: PreTrainedModel, prompt: tuple[int, ...], answer: tuple[int, ...]) -> float:
    """The negative log-probability of an answer."""
    logits = judge(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])
    return -float(chosen.sum())
