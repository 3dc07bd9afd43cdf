"""Workflows shared by scripts, notebooks and the command line: apply, annotate, evaluate, plan, report and search."""

import lazy_loader

# Lazy loading keeps the start of commands fast: the modules declared in __init__.pyi are imported on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
