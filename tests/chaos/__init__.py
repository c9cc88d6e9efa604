"""Faults, each provoked for real and many times, beside the clean run whose weights must come out all the same."""
