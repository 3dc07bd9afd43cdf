"""Support vector regression on the output manifold (LLT-SVR)."""
