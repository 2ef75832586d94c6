"""Benchmark sets of images; a new one is one new file here."""
