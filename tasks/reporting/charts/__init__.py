"""One chart per file, found by its name; tasks/reporting/drawing.py says what a file has to offer."""
