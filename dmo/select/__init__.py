"""Searches of parameters: cross-validated sweeps, and tuning in rounds of them."""
