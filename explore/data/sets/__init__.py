"""Benchmark data sets; a new one is one new file here."""
