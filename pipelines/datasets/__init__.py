"""Data sets that need code of their own to become feature stores."""
