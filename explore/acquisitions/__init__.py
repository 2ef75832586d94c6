"""Acquisition rules, one file each."""
