"""A local page on which a model is tried: see `dmo serve` (extra `serve`)."""
