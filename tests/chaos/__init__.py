"""Faults that are provoked for real: processes killed at random moments, saves that break off, checkpoints damaged."""
