"""Execution of updates: recorded, compiled or divided among processes. Results stay the same up to rounding."""
