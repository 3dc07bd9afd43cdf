"""Symmetric operators, their low-rank factors, linear solvers and eigensolvers."""
