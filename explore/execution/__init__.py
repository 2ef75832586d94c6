"""Execution of updates: recorded or divided among processes. Recording changes results only by rounding."""
