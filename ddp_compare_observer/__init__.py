"""Watches a training script from inside its ranks, and writes down what it does; torch is all that it needs.

`make audit` of ddp-compare loads it into a script that knows nothing of it (hook/sitecustomize.py). Whatever fails here
is written down and switches the observer off; it never reaches the script. A script that may be changed can say more:

    from ddp_compare_observer import step

    with step(ids=row_numbers):
        ...
"""

from ddp_compare_observer.telling import say_asked, step

__all__ = ["say_asked", "step"]
