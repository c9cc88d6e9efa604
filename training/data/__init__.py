"""Rows on disk, the plan of which rank takes which of them when, and micro-batches of them in memory."""
