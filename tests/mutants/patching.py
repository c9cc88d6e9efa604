"""Defects by name: a function of the product, or a constant, and what is called or stands in its place.

A process that is given DDP_COMPARE_PATCHES="MODULE:KEY", a line each, and `hook/` in PYTHONPATH has the patches of
those keys in place before anything of the product is used, and so have all that it starts.
"""

import ast
import functools
import importlib
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

VARIABLE = "DDP_COMPARE_PATCHES"
_HOOK = str(Path(__file__).with_name("hook"))


@dataclass(frozen=True)
class Patch:
    """A function by its module and qualified name, and what is called in its place."""

    name: str
    """`module:qualified.name`."""
    change: Any
    """Called with the original and what that was called with; of a constant, with its value."""

    @property
    def module(self):
        """The module to be imported."""
        return self.name.partition(":")[0]

    def find(self, names):
        """Return what has the name in the module, and its owner; KeyError if nothing has."""
        owner = found = names
        for part in self.name.partition(":")[2].split("."):
            owner, found = found, (found if isinstance(found, dict) else vars(found))[part]
        return owner, found

    def apply(self, names):
        """Change what the module holds; KeyError if the name is not there."""
        owner, original = self.find(names)
        if isinstance(original, property):
            changed = property(self._wrap(original.fget))
        else:
            changed = self._wrap(original) if callable(original) else self.change(original)
        last = self.name.rpartition(":")[2].rpartition(".")[2]
        if isinstance(owner, dict):
            owner[last] = changed
        else:
            type.__setattr__(owner, last, changed)

    def _wrap(self, original):
        @functools.wraps(original)
        def replacement(*given, **named):
            return self.change(original, *given, **named)

        return replacement


def find_patches(keys):
    """Return the patches of these keys: those in PATCHES of each module, `KEY from step N` as of a training's step."""
    found = []
    for key in keys.splitlines():
        module, _, told = key.partition(":")
        name, _, first = told.partition(" from step ")
        patches = importlib.import_module(module).PATCHES[name]
        found += _begin_at(int(first), patches) if int(first or 1) > 1 else patches
    return found


def _begin_at(first, patches):
    """Return patches of functions that a rank calls as they are before this step of the run."""
    step = 0

    def note(of, heartbeat, begun):
        nonlocal step
        step = begun
        of(heartbeat, begun)

    def late(change, of, *given, **named):
        return of(*given, **named) if step < first else change(of, *given, **named)

    changed = [Patch(patch.name, functools.partial(late, patch.change)) for patch in patches]
    return [Patch("training.process.heartbeat:Heartbeat.begin", note), *changed]


def make_environment(keys, before=os.environ):
    """Return what has a process patched that is started with it, added to the environment `before`."""
    folders = [folder for folder in before.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return {VARIABLE: keys, "PYTHONPATH": os.pathsep.join(folders if _HOOK in folders else [_HOOK, *folders])}


def install(patches):
    """Have the modules patched as soon as they are imported, or run by `python -m`."""
    by_module = {}
    for patch in patches:
        assert patch.module not in sys.modules, f"{patch.module} has been imported before it was patched"
        by_module.setdefault(patch.module, []).append(patch)
    sys.meta_path.insert(0, _Finder(by_module))
    if (keys := os.environ.get(VARIABLE)) and by_module:
        subprocess.Popen.__init__ = _hand_on(subprocess.Popen.__init__, keys)


def _hand_on(start, keys):
    """Return what starts a process patched, whatever environment it is given."""

    @functools.wraps(start)
    def start_patched(*given, env=None, **named):
        start(*given, env=None if env is None else {**env, **make_environment(keys, env)}, **named)

    return start_patched


class _Finder(MetaPathFinder):
    def __init__(self, by_module):
        self._by_module = by_module

    def find_spec(self, name, path=None, target=None):
        if name not in self._by_module:
            return None
        spec = PathFinder.find_spec(name, path, target)
        spec.loader = _Loader(name, spec.origin)
        spec.loader.patches = self._by_module[name]
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module):
        exec(self.source_to_code(self.get_data(self.path), self.path), vars(module))
        self.patch(vars(module))

    def get_code(self, fullname):
        """Return the code that `python -m` runs: patched before it begins, which is the last statement."""
        tree = ast.parse(self.get_data(self.path))
        (call,) = ast.parse("__spec__.loader.patch(globals())").body
        tree.body.insert(-1, call)
        return compile(tree, self.path, "exec")

    def patch(self, names):
        """Change what stands in the module."""
        for patch in self.patches:
            patch.apply(names)
