"""The museum of wrong speedups: defects of published comparisons, put into our own trainer, and who catches each."""
