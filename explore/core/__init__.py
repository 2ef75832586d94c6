"""The ground: shapes, random numbers, trees of tensors, linear algebra, errors, files. Imports no other room.

Start with `shapes` (the letters of all axes), `rng` (named streams of random numbers) and `errors` (what users see).
"""
