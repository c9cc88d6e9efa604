"""The defects, each made by a wrong function of our own trainer or pipeline; imports nothing of the product."""

from tests.museum.exhibits import (
    alike,
    blocks,
    mathematics,
    measuring,
    one_arm,
    resuming,
    searching,
    sharing,
    synchronisation,
    work,
)

EXHIBITS = [
    exhibit
    for part in (
        synchronisation, sharing, work, mathematics, resuming, alike, one_arm, measuring, blocks, searching,
    )
    for exhibit in part.EXHIBITS
]  # fmt: skip
"""In the order of the table."""
PATCHES = {exhibit.key: list(exhibit.patches) for exhibit in EXHIBITS}
