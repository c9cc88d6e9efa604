"""Ranks on several machines: the head starts torchrun on its own, and has the others start theirs.

A node other than the head runs `python -m tasks.ranks.launchers.nodes.join HOST:PORT`, which knocks at the head's door
(line.py) until there is a launch, is told what to run (parcel.py), shows that it has the same code and data, starts its
torchrun, and says how its ranks are until the end, when its logs go to the head (head.py).
"""
