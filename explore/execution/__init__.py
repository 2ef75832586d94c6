"""Execution of updates: recorded, compiled or divided among processes. None of these changes results."""
