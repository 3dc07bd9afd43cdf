"""Data that dmo draws or ships itself: digits and scenes."""
