"""From data to a fitted model: fits, pools, the active-learning loop, comparisons, saved models, estimators.

Knows no posterior by name. May import everything but `vime`, `testing` and `cli`.
"""
