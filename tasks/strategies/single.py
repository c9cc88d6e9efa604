"""One rank, the plain module: it exchanges nothing and has no options."""

from tasks.strategies import Profile


class Single(Profile):
    """See Profile."""

    def explain_no_waterfall(self, *, is_exact: bool) -> str | None:
        """Return that one rank loses nothing to others."""
        return "one rank, which loses nothing to others"


PROFILE = Single()
