"""scikit-learn estimators: validate, call a method, keep the fitted arrays."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # the names stand in __init__.pyi
del lazy_loader
