"""Symmetric operators, their factors, solvers and eigenpairs."""
