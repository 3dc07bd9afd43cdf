"""The trace template: MOPE, MESD, MORP and the catalogue of spectral methods."""
