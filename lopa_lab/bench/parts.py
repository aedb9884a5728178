"""Parts: what `lopa bench all` measures on a kind of device, each with one command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

PUBLISHED_SHAPES = ("dream-7b", "llada-8b", "sdar-4b")


@dataclass(frozen=True, slots=True)
class Part:
    """One record."""

    name: str
    """The name of the record's file."""
    arguments: tuple[str, ...]
    """The command, and its options with a value each."""
    smallest: tuple[str, ...]
    """Options and values in place of those, to see within seconds that it runs."""

    def command(self, *, smallest: bool) -> tuple[str, ...]:
        """The arguments of `lopa bench`."""
        if not smallest:
            return self.arguments
        replaced = set(self.smallest[::2])
        name, *options = self.arguments
        pairs = zip(options[::2], options[1::2], strict=True)
        kept = [word for pair in pairs if pair[0] not in replaced for word in pair]
        return (name, *kept, *self.smallest)


def parts_of(device: str) -> list[Part]:
    """The parts of a kind of device, the most important ones first."""
    return list(_cpu_parts() if device == "cpu" else _accelerator_parts(device))


def _part(name: str, command: str, smallest: str) -> Part:
    return Part(name, tuple(command.split()), tuple(smallest.split()))


def _cpu_parts() -> Iterator[Part]:
    yield _part(
        "forward-cpu",
        "forward --shape dream-27m --branches 1,2,4,5,8,9 --window 32,64 --device cpu",
        "--branches 1,2 --window 8 --prefix 16 --layers 1 --repeats 2",
    )
    yield _part(
        "step-cpu",
        "step --shape dream-27m --workers 0,1,2 --branches 1,4,8 --device cpu",
        "--workers 0,1 --branches 2 --layers 1 --max-new-tokens 32 --steps 3",
    )
    yield _part(
        "decode-cpu",
        "decode --requests 100 --device cpu",
        "--requests 2 --decoder lopa,d2f --max-new-tokens 32",
    )
    yield _part(
        "commit-cpu",
        "commit --shape dream-27m --layers 2,8 --workers 1,2 --span 8,32 --device cpu",
        "--workers 2 --span 8 --layers 1,2 --rounds 1 --transport collective",
    )
    yield _part(
        "many-workers-cpu",
        "step --shape dream-27m --layers 1 --workers 1,2,4,8 --branches 8 --max-new-tokens 64 --device cpu",
        "--workers 1,2 --branches 2 --max-new-tokens 32 --steps 3",
    )
    yield _part("control-cpu", "control", "--workers 1,2 --rounds 3")
    yield _part("startup-cpu", "startup --shape dream-27m --workers 2 --rounds 5", "--workers 1 --rounds 1")
    yield _part("recovery-cpu", "recovery --workers 1,2,4", "--workers 1 --rounds 1 --max-new-tokens 64")
    yield _part(
        "serve-cpu",
        "serve --start demo --concurrency 1,2,4,8,16 --rate 2,4 --deadline 2 --requests 96",
        "--concurrency 2 --rate 4 --requests 4 --max-tokens 16",
    )


def _accelerator_parts(device: str) -> Iterator[Part]:
    bf16 = f"--dtype bfloat16 --device {device}"
    tiny = "--branches 1,2 --window 8 --prefix 16 --layers 1 --repeats 2"
    for shape in PUBLISHED_SHAPES:
        yield _part(
            f"forward-{shape}-{device}",
            f"forward --shape {shape} --branches 1,4,8,15 --window 32,64 --prefix 512 {bf16}",
            tiny,
        )
    yield _part(
        f"step-dream-7b-{device}",
        f"step --shape dream-7b --workers 0,1 --branches 1,4,8,15 --prompt 512 {bf16}",
        "--workers 0 --branches 2 --layers 1 --prompt 16 --max-new-tokens 32 --steps 3",
    )
    for shape in PUBLISHED_SHAPES:
        yield _part(
            f"serve-{shape}-{device}",
            f"serve --start {shape} --concurrency 1,8,32,64 --requests 128 --deadline 10 --device {device}"
            " --set model.dtype=bfloat16 --set model.max_num_seqs=64 --set model.max_model_len=1024"
            " --lopa ignore_eos=true",
            "--concurrency 2 --requests 4 --max-tokens 16 --layers 1",
        )
    yield _part(
        f"decode-dream-7b-{device}",
        "decode --shape dream-7b --decoder lopa,d2f --requests 8 --prompt 512 --set model.dtype=bfloat16"
        f" --set decode.ignore_eos=true --device {device}",
        "--requests 2 --layers 1 --prompt 16 --max-new-tokens 32",
    )
    if device != "cuda":
        return
    yield _part(
        f"kernels-{device}",
        f"forward --shape dream-7b --layers 4 --kernel triton,sdpa --graphs off,on --branches 1,8 --prefix 512 {bf16}",
        tiny,
    )
