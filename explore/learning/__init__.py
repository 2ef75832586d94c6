"""From data to a fitted model: fits, pools, the active-learning loop, comparisons, saved models, estimators.

This package refers to no posterior by name, and may import every package except `vime`, `testing` and `cli`.
"""
