"""Execution of updates: recorded, compiled, or divided among processes. It does not change results."""
