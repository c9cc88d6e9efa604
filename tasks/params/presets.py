"""A comparison of presets/ is made the active one."""

import shutil
from pathlib import Path

from tasks.params import load_params
from tasks.params.choices import suggest
from tasks.params.saved import save_beside
from tasks.process.failure import ConfigurationError

_PRESETS = Path("presets")
_ACTIVE = Path("params.yaml")


def use_preset(name: str, *, saves: bool = True) -> str:
    """Write presets/<name>.yaml into params.yaml and return what was done, and what it still lacks.

    With `saves` a params.yaml of one's own making is kept beside it first. Raises ConfigurationError for an unknown
    name.
    """
    presets = {file.stem: file for file in sorted(_PRESETS.glob("*.yaml"))}
    if name not in presets:
        raise ConfigurationError(f"PRESET: got {name!r}{suggest(name, [*presets])}; allowed: {', '.join(presets)}")
    load_params(presets[name], looks_at_data=False)
    said = f"params.yaml is now {presets[name]}"
    active = _ACTIVE.read_bytes() if _ACTIVE.is_file() else None
    if saves and active is not None and active not in [file.read_bytes() for file in presets.values()]:
        said += f"; yours was saved as {save_beside(_ACTIVE)}"
    shutil.copyfile(presets[name], _ACTIVE)
    try:
        load_params(_ACTIVE)
    except ConfigurationError as error:
        said += f"; before it can run: {error}"
    return said
