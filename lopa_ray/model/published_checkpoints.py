"""Published checkpoints: names on the Hugging Face Hub, size of the weights, presets, figures of their authors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """A checkpoint on the Hub that a family loads."""

    name: str
    """On the Hub."""
    family: str
    weights_gib: float
    """Weights in bfloat16, in GiB, computed from the published configuration, or from that of a model with the same
    shape."""
    preset: str | None = None
    """Of `--config`: settings for this checkpoint, or for one of the same shape that is decoded as this one is."""
    figures: str = ""
    """Score and, where they state it, tokens per forward pass (TPF) of the authors, on machines of their own."""


_DREAM_7B, _LLADA_8B, _SDAR_8B, _LLADA2_MINI, _LLADA2_FLASH = 14.2, 14.9, 15.3, 30.3, 191.7

PUBLISHED_CHECKPOINTS: tuple[PublishedCheckpoint, ...] = (
    PublishedCheckpoint(
        "Dream-org/Dream-v0-Instruct-7B",
        "dream",
        _DREAM_7B,
        "d2f-dream-7b",
        "GSM8K 73.8 at TPF 10.1 with D2F's adapter and LoPA (arXiv 2512.16229)",
    ),
    PublishedCheckpoint("Dream-org/Dream-v0-Base-7B", "dream", _DREAM_7B, "paper/d2f-dream-gsm8k"),
    PublishedCheckpoint(
        "apple/DiffuCoder-7B-Instruct",
        "dream",
        _DREAM_7B,
        "paper/d2f-diffucoder-humaneval-plus",
        "HumanEval+ 64.0 at TPF 8.3 with D2F's adapter and LoPA (arXiv 2512.16229)",
    ),
    PublishedCheckpoint("apple/DiffuCoder-7B-cpGRPO", "dream", _DREAM_7B, "paper/diffucoder-vanilla"),
    PublishedCheckpoint("Dream-org/Dream-Coder-v0-Instruct-7B", "dream", _DREAM_7B, "paper/dream-vanilla"),
    PublishedCheckpoint("GSAI-ML/LLaDA-8B-Instruct", "llada", _LLADA_8B, "paper/llada-lopa"),
    PublishedCheckpoint("GSAI-ML/LLaDA-1.5", "llada", _LLADA_8B, "paper/llada-vanilla"),
    PublishedCheckpoint("JetLM/SDAR-4B-Chat", "sdar", 8.2, "paper/sdar-4b-chat"),
    PublishedCheckpoint("JetLM/SDAR-8B-Chat", "sdar", _SDAR_8B, "paper/sdar-4b-chat"),
    PublishedCheckpoint(
        "SJTU-DENG-Lab/MBD-Math-SDAR-8B-Chat-b32",
        "sdar",
        _SDAR_8B,
        "models/mbd-sdar-8b-b32",
        "GSM8K 89.2 at TPF 3.08",
    ),
    PublishedCheckpoint(
        "SJTU-DENG-Lab/MBD-Code-SDAR-8B-Chat-b32",
        "sdar",
        _SDAR_8B,
        "models/mbd-sdar-8b-b32",
        "HumanEval+ 62.8 at TPF 4.82",
    ),
    PublishedCheckpoint(
        "SJTU-DENG-Lab/MBD-Math-SDAR-8B-Chat-b4",
        "sdar",
        _SDAR_8B,
        "models/mbd-sdar-8b-b4",
        "GSM8K 91.8 at TPF 2.28",
    ),
    PublishedCheckpoint(
        "Efficient-Large-Model/Fast_dLLM_v2_7B",
        "fast_dllm_v2",
        _DREAM_7B,  # of the same shape: both began as Qwen2.5-7B
        "models/fast-dllm-v2-7b",
        "GSM8K 83.7, HumanEval+ 58.5",
    ),
    PublishedCheckpoint(
        "Efficient-Large-Model/Fast_dLLM_v2_1.5B",
        "fast_dllm_v2",
        2.9,
        "models/fast-dllm-v2-7b",
        "GSM8K 62.0, HumanEval+ 40.2",
    ),
    PublishedCheckpoint(
        "nvidia/Nemotron-Labs-Diffusion-3B", "nemotron", 7.1, "models/nemotron-labs-diffusion-8b"
    ),
    PublishedCheckpoint(
        "nvidia/Nemotron-Labs-Diffusion-8B",
        "nemotron",
        15.8,
        "models/nemotron-labs-diffusion-8b",
        "mean of ten tasks 62.8 at TPF 5.99 with self-speculation",
    ),
    PublishedCheckpoint(
        "nvidia/Nemotron-Labs-Diffusion-14B", "nemotron", 25.2, "models/nemotron-labs-diffusion-8b"
    ),
    PublishedCheckpoint("JetLM/SDAR-30B-A3B-Chat", "sdar_moe", 56.9, "models/sdar-30b-a3b-chat"),
    PublishedCheckpoint("inclusionAI/LLaDA2.0-mini", "llada2", _LLADA2_MINI, "models/llada2.0-mini"),
    PublishedCheckpoint("inclusionAI/LLaDA2.0-flash", "llada2", _LLADA2_FLASH, "models/llada2.0-flash"),
    PublishedCheckpoint(
        "inclusionAI/LLaDA2.1-mini",
        "llada2",
        _LLADA2_MINI,
        "models/llada2.1-mini",
        "HumanEval+ 80.5 at TPF 12.3",
    ),
    PublishedCheckpoint(
        "inclusionAI/LLaDA2.1-flash",
        "llada2",
        _LLADA2_FLASH,
        "models/llada2.1-flash",
        "HumanEval+ 89.6 at TPF 13.8",
    ),
    PublishedCheckpoint("Zigeng/DMax-16B", "llada2", _LLADA2_MINI, "models/dmax-16b"),
    PublishedCheckpoint(
        "Zigeng/DMax-Math-16B",
        "llada2",
        _LLADA2_MINI,
        "models/dmax-16b",
        "GSM8K at TPF 5.47 (LLaDA2.0-mini: 2.04)",
    ),
    PublishedCheckpoint(
        "Zigeng/DMax-Coder-16B",
        "llada2",
        _LLADA2_MINI,
        "models/dmax-16b",
        "MBPP at TPF 5.86 (LLaDA2.0-mini: 2.71)",
    ),
    PublishedCheckpoint(
        "SJTU-DENG-Lab/MBD-Math-LLaDA2-mini-16B",
        "llada2",
        _LLADA2_MINI,
        "models/mbd-llada2-mini",
        "GSM8K 92.0 at TPF 5.55",
    ),
    PublishedCheckpoint(
        "SJTU-DENG-Lab/MBD-Code-LLaDA2-mini-16B",
        "llada2",
        _LLADA2_MINI,
        "models/mbd-llada2-mini",
        "HumanEval+ 80.5 at TPF 7.85",
    ),
    PublishedCheckpoint(
        "SJTU-DENG-Lab/MBD-Math-LLaDA2-mini-DMax-16B",
        "llada2",
        _LLADA2_MINI,
        "models/mbd-llada2-mini-dmax",
        "GSM8K 91.7 at TPF 8.95",
    ),
    PublishedCheckpoint(
        "SJTU-DENG-Lab/MBD-Code-LLaDA2-mini-DMax-16B",
        "llada2",
        _LLADA2_MINI,
        "models/mbd-llada2-mini-dmax",
        "HumanEval+ 77.4 at TPF 10.78",
    ),
    PublishedCheckpoint(
        "google/diffusiongemma-26B-A4B-it", "diffusion_gemma", 47.0, "models/diffusion-gemma-26b"
    ),
)
"""By family; presets and documentation name the same."""
