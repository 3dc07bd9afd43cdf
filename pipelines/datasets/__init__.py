"""Readers of data sets that need their own code to become feature stores."""
