"""NVIDIA cards that are not there: torch's own CUDA build runs on them, and nothing computes (CONTRIBUTING.md)."""
