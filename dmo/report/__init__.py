"""Images of data, scores and fits, and a self-contained HTML report."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # Public names: see `__init__.pyi`.
del lazy_loader
