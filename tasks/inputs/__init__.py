"""What a run works on: one snapshot from its first stage to its last, and what is damaged of it."""
