"""Metrics of label scores, label sets and real-valued predictions, computed block by block.

Labels Y and predictions P contain 0 and 1, and scores S contain any numbers. Labels, predictions and scores are dense
or CSR matrices of shape (n, L), in memory or in a store. Counts are integers, so that the result does not depend on the
block size. Metrics with the same name in scikit-learn have the same value, also for tied scores.
"""

import lazy_loader

# The public names are declared in __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
