"""Finished slices appear in the output as hard links."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from tasks.records.facts import SliceFacts
from tasks.records.slices import SliceManifest
from tasks.store.links import link_folder


def link_slices(stored: Mapping[str, Path], slices: Path) -> dict[str, SliceFacts]:
    """Fill `slices` with these finished slices, by their ranges; return what the list of all says of each."""
    shutil.rmtree(slices, ignore_errors=True)
    for name, folder in stored.items():
        link_folder(folder, slices / name)
    return {name: SliceManifest.read(folder) for name, folder in stored.items()}
