"""From images to rows: the descriptors of the image annotation papers, and the way into a feature store (extra `images`)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names stand in __init__.pyi
del lazy_loader
