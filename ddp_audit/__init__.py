"""Is a training script right on several ranks, and how much faster? It is started as it is, and watched from inside.

A script that may be changed can say more, and does nothing by that where no audit has started it:

    from ddp_audit import step

    with step(ids=row_numbers):
        ...
"""

from ddp_audit.observer import say_asked, step

__all__ = ["say_asked", "step"]
