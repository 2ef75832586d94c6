"""Acquisition rules, one per file."""
