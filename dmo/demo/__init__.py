"""Data that dmo ships itself: digits."""
