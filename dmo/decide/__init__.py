"""From scores to rankings, label sets, probabilities and classes: learned from held-out scores, one surface for all."""
