"""From data to a fitted model: fits, pools, the active-learning loop, comparisons, saved models, estimators.

The code refers to no posterior by name. It may import every package except `vime`, `testing` and `cli`.
"""
