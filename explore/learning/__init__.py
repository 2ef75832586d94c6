"""From data to a fitted model: fits, pools, the active-learning loop, comparisons, estimators for scikit-learn.

Knows no posterior by name. May import everything but `campaign`, `vime`, `runs`, `testing`, `envs` and `cli`.
"""
