"""Data included in dmo: handwritten digits."""
