"""Mutants are the faults that they say, and are found again where the code has moved."""

from __future__ import annotations

from mutation.mutant import mutants

MODULE = '''
class Queue:
    """A queue."""

    def first(self, wanted: int = 1) -> int:
        """The first one."""
        if wanted < 1:
            raise ValueError(f"got {wanted + 1}")
        logger.info("one of %d", 5)
        return self.rest
'''


def test_mutants_of_a_module() -> None:
    found = [*mutants("package", "module.py", MODULE)]
    assert [(mutant.operator, mutant.mutated) for mutant in found] == [
        ("constant", "def first(self, wanted: int = 2) -> int:"),
        ("negation", "if (not (wanted < 1)):"),
        ("comparison", "if (wanted <= 1):"),
        ("constant", "if wanted < 2:"),
        ("removed raise", "pass"),
        ("returned None", "return None"),
    ]
    moved = MODULE.replace("        if wanted", "        self.asked = True\n\n        if wanted")
    assert found[2].apply(moved) == moved.replace("if wanted < 1", "if (wanted <= 1)")
    assert found[2].apply(moved.replace("wanted < 1", "1 > wanted")) is None
