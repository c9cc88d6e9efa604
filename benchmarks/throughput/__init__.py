"""Our training step beside what a user would pick instead: same model, rows, global batch and precision."""
