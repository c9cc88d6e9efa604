"""Pickles that touch a canary file when they are loaded, in every wrapping that a file of ours could have."""

import io
import os
import pickle
import tarfile
import zipfile

import torch


class Call:
    """Pickles as a call: whoever loads it makes the call."""

    def __init__(self, function, *arguments):
        self._call = (function, arguments)

    def __reduce__(self):
        return self._call


def touching(canary, *, by="system"):
    """Return what touches the canary when it is unpickled."""
    code = f"open({str(canary)!r}, 'w').close()"
    calls = {
        "system": Call(os.system, f"touch {canary}"),
        "eval": Call(eval, code),
        "exec": Call(exec, code),
        "nested": Call(list, [Call(dict, [("a", Call(eval, code))])]),
    }
    return calls[by]


def plain(value):
    """Return the value as a bare pickle: also what joblib writes, and the .metadata of a distributed checkpoint."""
    return pickle.dumps(value, protocol=2)


def saved(value):
    """Return what torch.save makes of the value: a zip with a pickle in it."""
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def saved_as_before(value):
    """Return what torch.save made of it before torch 1.6: several pickles, one after another."""
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


def in_tar(value):
    """Return a tar of pickles, as torch wrote before 0.1.10."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            raw = plain(value)
            entry = tarfile.TarInfo(name)
            entry.size = len(raw)
            archive.addfile(entry, io.BytesIO(raw))
    return stream.getvalue()


def with_entries(archive, changed, *, compression=zipfile.ZIP_STORED):
    """Return the zip with entries replaced or added, named by how their names end."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(stream, "w", compression) as target:
        root = source.namelist()[0].partition("/")[0]
        contents = {name: source.read(name) for name in source.namelist()}
        for end, raw in changed.items():
            contents[f"{root}/{end}"] = raw
        for name, raw in contents.items():
            target.writestr(name, raw)
    return stream.getvalue()
