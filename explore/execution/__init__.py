"""Execution of updates: recorded, compiled or divided among processes. Recording changes results only by rounding."""
