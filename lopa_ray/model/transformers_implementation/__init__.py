"""How the package transformers runs models: their weights and modules."""
