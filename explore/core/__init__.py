"""Foundations: shapes, random numbers, trees, linear algebra, errors, files. They import no other part of explore.

Start with `shapes` (the letters of all axes), `rng` (named random streams) and `errors` (messages for users).
"""
