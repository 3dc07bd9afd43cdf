"""Workflows that scripts, notebooks and the command line share, such as annotation, evaluation and search."""

import lazy_loader

# The modules listed in `__init__.pyi` are imported on first use, so that commands start fast.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
