"""One optimizer step and the state behind it: what a strategy is, and what strategies are made of."""
