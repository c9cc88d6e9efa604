"""Is the prediction right? Speedups foretold from one and two emulated devices, against those measured on two and four.

`configurations.py` says which devices, `points.py` measures them and counts, `chart.py` draws, `__main__.py` runs all;
`real.py` judges on this machine instead.
"""
