"""One rank, the plain module: it exchanges nothing and has no options."""

from training.strategies import Options, StrategyTraits


class Single(StrategyTraits):
    """See StrategyTraits."""

    no_waterfall = "one rank, which loses nothing to others"

    def explain_unfit(self, options: Options, *, world_size: int) -> str | None:
        """Return that there are more ranks."""
        is_one = world_size == 1
        return None if is_one else f"world_size: got {world_size} with strategy single; allowed: 1, or strategy ddp"


TRAITS = Single()
