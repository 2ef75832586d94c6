"""Run folders: what is recorded of a run, read back, and compared with the start before. May import `core`."""
