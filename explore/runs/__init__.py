"""Run folders: recording, reading, and comparison with the previous start. May import only `core`."""
