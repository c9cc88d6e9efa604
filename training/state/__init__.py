"""Checkpoints and what they consist of: whole or absent, verified before every use."""
