"""A step rehearsed without its GPU: what `make rehearse` runs in place of ranks, and nobody else."""
