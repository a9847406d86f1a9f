"""Verifiers: what judges a response. No jax here, so that worker processes start fast and small."""
