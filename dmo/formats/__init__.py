"""Readers of data files, such as ARFF, CSV, HDF5, MATLAB, NumPy, Parquet, svmlight and Zarr files."""
