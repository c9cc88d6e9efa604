"""Is an update of several ranks that of one process? The second computation, and updates held against it."""
