"""Methods that learn rankings, label sets and label probabilities from out-of-fold or leave-one-out scores."""
