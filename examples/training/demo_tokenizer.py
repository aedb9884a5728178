"""The demo model's tokenizer: byte-level BPE with single digits and a chat template."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from demo_samples import mixed_problems
from lopa_lab.word_problems.decisions import decision_stream

SPECIAL_TOKENS = ("<|endoftext|>", "<|mask|>", "<|im_start|>", "<|im_end|>")
EOS_TOKEN_ID, MASK_TOKEN_ID = 0, 1
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
# Qwen2's pattern, which splits off every digit.
SPLIT_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def chat_prompt(question: str) -> str:
    """A user's message as the chat template writes it, with the beginning of the answer."""
    return user_message(question) + "<|im_start|>assistant\n"


def user_message(content: str) -> str:
    """A user's message as the chat template writes it, without an answer."""
    return f"<|im_start|>user\n{content}<|im_end|>\n"


def train_tokenizer(folder: Path, vocab_size: int = 1792, problems: int = 40_000) -> Tokenizer:
    """Train on the problems of seed 0 and write tokenizer.json and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def texts() -> Iterator[str]:
        for problem in itertools.islice(mixed_problems(0), problems):
            yield f"user\n{problem.question}\nassistant\n{problem.answer}"
        for decision in itertools.islice(decision_stream(0, held_out=False), problems // 8):
            label = decision.question.labels[decision.right]
            yield f"user\n{decision.input}\nuser\n{decision.question.message}\nassistant\n{label}"

    tokenizer.train_from_iterator(texts(), trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / TOKENIZER_FILES[0]))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL_TOKENS[0],
        "pad_token": SPECIAL_TOKENS[0],
        "bos_token": SPECIAL_TOKENS[0],
        "mask_token": SPECIAL_TOKENS[1],
        "additional_special_tokens": list(SPECIAL_TOKENS[2:]),
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / TOKENIZER_FILES[1]).write_text(json.dumps(settings, indent=2) + "\n")
    return tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a folder, trained first if it is not there yet."""
    path = folder / TOKENIZER_FILES[0]
    return Tokenizer.from_file(str(path)) if path.exists() else train_tokenizer(folder)
