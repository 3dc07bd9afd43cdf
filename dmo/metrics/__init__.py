"""Metrics of label scores, label sets and real-valued predictions, computed block by block.

Labels Y are 0/1, scores S are any numbers, and predictions P are 0/1; all are n x L row sources. Counts are integers,
so that the block size does not affect them. Metrics with a scikit-learn counterpart of the same name have the same
value, also for ties.
"""

import lazy_loader

# The public names are declared in __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
