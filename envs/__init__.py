"""Gymnasium environments that come with explore."""
