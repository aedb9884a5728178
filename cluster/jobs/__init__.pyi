from .predictor import LopaPredictor as LopaPredictor
