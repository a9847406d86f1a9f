"""Rollouts and groups: collecting them, and packing them into batches."""
