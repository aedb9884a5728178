"""Ask typed questions about an input, and get a probability for each value.

The model in the package answers the last question; the first two need a model that compares numbers.

python examples/decide.py
"""

from lopa_ray import (
    ChoiceAnswer,
    ChoiceQuestion,
    LocalEngine,
    PredicateAnswer,
    PredicateQuestion,
    ScoreQuestion,
)

INPUT = "Tom has 6 pens, and Mia has 9 pens."
QUESTIONS: list[PredicateQuestion | ChoiceQuestion | ScoreQuestion] = [
    PredicateQuestion("Does Mia have more pens than Tom?"),
    ChoiceQuestion("Who has the most pens?", ["Tom", "Mia"]),
    ScoreQuestion("How many pens does Tom have?", ["fewer than 10", "10 to 99", "100 or more"]),
]

with LocalEngine.from_pretrained("demo") as engine:
    result = engine.decide(INPUT, QUESTIONS)
    for question, answer in zip(QUESTIONS, result.answers, strict=True):
        print(question.instructions)
        if isinstance(answer, PredicateAnswer):
            print(f"  yes with probability {answer.probability:.2f}")
            continue
        best = answer.choice if isinstance(answer, ChoiceAnswer) else f"{answer.score:.2f}"
        print(f"  {best}, confidence {answer.confidence:.2f}: {answer.probabilities}")
    print(f"{result.forwards} forwards in {result.steps} steps")
