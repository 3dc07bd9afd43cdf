"""The trace template: MOPE, MESD, MORP and the catalog of spectral methods."""
