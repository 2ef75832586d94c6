"""Foundations: shapes, random numbers, trees of tensors, linear algebra, errors, files. Imports nothing else.

Start with `shapes` (the letters of all axes), `rng` (named streams of random numbers) and `errors` (what users see).
"""
