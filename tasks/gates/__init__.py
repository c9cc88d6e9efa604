"""The gates: each decides of one cell whether its speedup may be printed, and says which numbers it compared."""
