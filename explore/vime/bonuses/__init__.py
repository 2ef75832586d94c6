"""Bonuses for exploration: each file is a plug-in, see `explore.vime.bonuses.base`."""
