"""Plug-ins of another package than `explore`."""
