"""Example data set of handwritten digits."""
