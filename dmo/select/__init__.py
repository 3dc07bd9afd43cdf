"""Hyperparameter search by cross-validated grid search, and automatic tuning in several rounds."""
