"""Image descriptors of the annotation literature, and extraction of images into feature stores (extra `images`)."""

import lazy_loader

# The public names are declared in __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
