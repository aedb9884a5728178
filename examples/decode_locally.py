"""Decode in this process, without Ray, and look at every step.

python examples/decode_locally.py
"""

from __future__ import annotations

from lopa_ray import LocalEngine, LopaSettings

PROBLEM = "Tom has 6 bags. There are 7 cards in each. Mia takes 15 cards. How many cards does Tom have left?"


def main() -> None:
    """Decode one problem with 4 branches and with 1."""
    engine = LocalEngine.from_pretrained("demo")  # or a checkpoint's folder, with dtype=... and device=...
    for num_branches in (4, 1):
        settings = LopaSettings(num_branches=num_branches, max_new_tokens=64)
        result = engine.generate(PROBLEM, settings, trace=True)
        print(
            f"{num_branches} branches: {result.tokens} tokens in {result.steps} steps, TPF {result.tpf:.2f}"
        )
        for step in result.trace:
            confidences = " ".join(f"{branch.confidence:.3f}" for branch in step.branches)
            print(f"  step {step.step}: branch {step.winner} won of {confidences}")
    print(result.text)


if __name__ == "__main__":
    main()
