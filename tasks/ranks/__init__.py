"""The ranks of a cell: started, followed, watched and ended."""
