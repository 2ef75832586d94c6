"""Posteriors over the weights of a net; one file a method."""
