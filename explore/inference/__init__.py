"""Shared parts of posteriors: base classes (`base`), covariance `structures`, training `updates`, and predictions."""
