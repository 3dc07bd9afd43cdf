"""Fits of the methods by moments of one pass, exact operators, low-rank factors or Krylov subspaces."""
