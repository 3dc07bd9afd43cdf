"""What a script, a notebook and the command line all do: apply, annotate, evaluate, plan, report, search."""

import lazy_loader

# a command makes its options before it works: its modules stand in __init__.pyi, loaded when a command asks for one
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
