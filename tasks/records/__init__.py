"""Files that pass between stages: one class each, which says names, units and what is allowed."""
