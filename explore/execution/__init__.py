"""How an update is run: recorded as a CUDA graph, compiled, shared by processes, side by side on streams.

Results do not depend on it. May import `core`.
"""
