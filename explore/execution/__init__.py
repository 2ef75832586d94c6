"""The execution of updates: recorded, compiled, or divided among processes. Results do not depend on it."""
