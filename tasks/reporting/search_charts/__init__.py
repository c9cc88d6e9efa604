"""Charts of a search, one per file, found by their names; each offers what `Chart` of drawing.py says, of a search."""
