"""Ask a typed question about inputs, and get a probability for each value.

The model in the package answers scores of one number; `PredicateQuestion("Is it urgent?")` and
`ChoiceQuestion("Which team?", ["sales", "support"])` need a model that was trained for them.

python examples/decide.py
"""

from lopa_ray import LocalEngine, ScoreAnswer, ScoreQuestion

INPUTS = ["Tom has 6 pens.", "Mia has 90 pens."]
QUESTION = ScoreQuestion("How many pens are there?", ["fewer than 10", "10 to 99", "100 or more"])

with LocalEngine.from_pretrained("demo") as engine:
    for given in INPUTS:
        result = engine.decide(given, [QUESTION])
        (answer,) = result.answers
        assert isinstance(answer, ScoreAnswer)
        shown = ", ".join(f"{value} {probability:.2f}" for value, probability in answer.probabilities.items())
        print(f"{given} {answer.score:.2f}, confidence {answer.confidence:.2f} ({shown})")
    print(f"{result.forwards} forwards in {result.steps} steps each")
