"""Grade-school word problems of one to four steps, from a seed, in the manner of GSM8K.

A problem is a story in several sentences. Each sentence has several wordings, and a sentence that does not matter may
stand among them. An answer writes its calculations out (`3*4=12`) and ends with a line `#### 12`. Numbers and results
have one to three digits.
"""

from lopa_lab.word_problems.generator import held_out_problems, held_out_stream, training_problems
from lopa_lab.word_problems.problem import Problem, extract_answer, is_correct

__all__ = [
    "Problem",
    "extract_answer",
    "held_out_problems",
    "held_out_stream",
    "is_correct",
    "training_problems",
]
