"""Pickles that touch a canary file when they are loaded, in every wrapping that a file of ours could have."""

import io
import pickle
import zipfile

import torch


class _Call:
    """Pickles as a call of eval: whoever loads it makes the call."""

    def __init__(self, code):
        self._code = code

    def __reduce__(self):
        return eval, (self._code,)


def touching(canary):
    """Return what touches the canary when it is unpickled."""
    return _Call(f"open({str(canary)!r}, 'w').close()")


def plain(value):
    """Return the value as a bare pickle, such as the .metadata of a distributed checkpoint."""
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
