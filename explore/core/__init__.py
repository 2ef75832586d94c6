"""Foundations, which import no other part of explore: shapes, random numbers, trees, linear algebra, errors, files.

Start with `shapes` (letters that name the axes), `rng` (named random streams) and `errors` (messages for users).
"""
