"""Homogeneity analysis: KGHA, multiple-set CCA and ridge regression share its operators and moments."""
