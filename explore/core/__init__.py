"""Foundations: shapes, random numbers, trees of tensors, linear algebra, errors, files. Imports no other package.

Start with `shapes` (the letters of all axes), `rng` (named random streams) and `errors` (messages for users).
"""
