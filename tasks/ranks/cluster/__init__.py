"""A Ray cluster: how this machine joins it, its other machines, and what runs on them in actors."""
