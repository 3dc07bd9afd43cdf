"""Hyperparameter search: cross-validated grid search, and automatic tuning in several rounds of it."""
