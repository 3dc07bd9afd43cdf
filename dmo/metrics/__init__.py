"""How good scores, label sets and real-valued predictions are, read block by block.

Labels Y are 0/1, scores S any numbers, predictions P 0/1, all n x L row sources. What is counted stays an integer, so that
no count depends on the blocks. Where scikit-learn has a figure of that name, this one equals it, ties included.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names stand in __init__.pyi
del lazy_loader
