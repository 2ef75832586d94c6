"""Run folders: writing, reading, and comparison of sessions. This package may import only `core`."""
