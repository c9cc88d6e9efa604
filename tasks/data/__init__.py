"""Rows and base models: where they come from, what is built in, and what slices are made of."""
