from .decider import LopaDecider as LopaDecider
from .predictor import LopaPredictor as LopaPredictor
