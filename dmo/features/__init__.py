"""Image descriptors from the literature on image annotation, and extraction of features from folders of images.

This subpackage requires the optional dependencies `dmo-learn[images]`.
"""

import lazy_loader

# The public names are declared in __init__.pyi.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
