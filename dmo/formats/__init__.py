"""Readers of file formats: ARFF, delimited text, MATLAB, NumPy, svmlight and vecs files."""
