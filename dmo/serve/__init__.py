"""Local web page for trying a model: see `dmo serve` (extra `serve`)."""
