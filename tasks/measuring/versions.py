"""Which way of measuring this is."""

from training.numerics import NUMERICS_VERSION

MEASURING_VERSION = 5
"""Part of the key of every measurement and evaluation, beside NUMERICS_VERSION.

Raised with every change of what is measured, how, or what its record has.
"""


def list_versions() -> dict[str, int]:
    """Return both, as they stand in keys of what is measured."""
    return {"numerics": NUMERICS_VERSION, "measuring": MEASURING_VERSION}
