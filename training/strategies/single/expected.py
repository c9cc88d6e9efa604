"""One rank, the plain module: it exchanges nothing and has no options."""

from training.strategies import Profile


class Single(Profile):
    """See Profile."""

    no_waterfall = "one rank, which loses nothing to others"


PROFILE = Single()
