"""How many samples a larger batch needs for an equally good model: predicted from the noise of gradients, and trained.

The statistical half of a time to quality. It needs no clock: one process that adds up a step's micro-batches trains
as any number of ranks do, so that a busy machine changes none of its numbers.
"""
