"""Structures of the Fisher matrix, and thus of the covariance: Kronecker factors, low rank, dense, diagonal."""

from explore.core.moved import attributes

__getattr__ = attributes("explore.inference.structures", "explore.inference.structures.base")
