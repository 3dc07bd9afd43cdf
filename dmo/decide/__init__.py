"""Learn rankings, label sets, probabilities and classes from out-of-fold or leave-one-out scores."""
