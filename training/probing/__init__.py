"""What ranks run for the stage `measure` alone: timed blocks, counterfactuals, the parts of a step, the link."""
