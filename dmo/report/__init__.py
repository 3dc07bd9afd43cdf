"""Figures of data, scores and predictions, and HTML reports."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # `__init__.pyi` lists the public names.
del lazy_loader
