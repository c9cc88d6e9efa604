"""One optimizer step: replica.py computes it, strategy.py says what a strategy is, the others are what those share."""
