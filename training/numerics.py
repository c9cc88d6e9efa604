"""Which numbers a training comes to."""

NUMERICS_VERSION = 1
"""Part of the key of every finished segment and measurement: another number trains and measures anew.

Raised with every change of what a step computes, or of how long it takes; tests/training/golden/ fails where numbers
move without it. A renamed function, a moved file or a comment leaves it as it is, and all that is finished with it.
"""
