"""Structures of the Fisher matrix, and thus of the covariance: Kronecker factors, low rank, dense, diagonal."""
