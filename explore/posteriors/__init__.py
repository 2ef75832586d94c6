"""Posteriors over network weights, one module per method."""
