"""Readers of file formats: ARFF, delimited text, MATLAB, NumPy, SVMlight, vecs."""
