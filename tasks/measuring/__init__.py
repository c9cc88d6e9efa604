"""What the stage `measure` measures, one file per kind of measurement."""

RANK_FILES = ("measure.py", "probe.py", "sweep.py", "variants.py")
"""Files of training/ that a rank runs only while it is measured: the stage depends on them, no training does."""
