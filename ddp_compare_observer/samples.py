"""Small digests of large tensors: a few elements of each, evenly spread, the same ones on every rank."""

import ctypes
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch

_ELEMENTS = 64
_MOST_TENSORS = 4000
_ROW_BYTES = 8192
_MOST_ROWS = 4096
_SHOWN = 8


def digest_tensors(tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return a digest per tensor, the first few sampled elements and the root of all their squares.

    `is_sharded` says that this rank holds only a part of some tensor, which others then need not hold.
    """
    picked, is_sharded = [], False
    for tensor in tensors[:_MOST_TENSORS]:
        local = tensor.detach()
        if hasattr(local, "to_local"):
            local, is_sharded = local.to_local(), True
        picked.append(_pick(local))
    if not picked:
        return {"digests": [], "head": [], "l2": 0.0, "is_sharded": False}
    # One copy from the device for all of them.
    values = torch.cat([one.to(torch.float64) for one in picked]).cpu()
    digests, start = [], 0
    for one in picked:
        digests.append(f"{zlib.crc32(read_bytes(values[start : start + one.numel()])):08x}")
        start += one.numel()
    head = [float(one) for one in values[:: max(1, len(values) // _SHOWN)][:_SHOWN]]
    return {"digests": digests, "head": head, "l2": float(values.square().sum().sqrt()), "is_sharded": is_sharded}


def _pick(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.reshape(-1)
    return flat[:: max(1, flat.numel() // _ELEMENTS)][:_ELEMENTS]


def digest_rows(tensor: torch.Tensor, mask: torch.Tensor | None = None) -> list[str]:
    """Return a digest per row of (num_rows, ...), of at most 8 KiB of each; tokens that a mask leaves out don't count.

    Without a mask zeros at the ends of a row of integers are taken for padding.
    """
    rows = tensor.detach().reshape(len(tensor), -1)[:_MOST_ROWS]
    most = max(1, _ROW_BYTES // rows.element_size())
    if rows.is_floating_point() or rows.dtype == torch.bool or rows.shape[1] == 1:
        rows = rows[:, :: max(1, -(-rows.shape[1] // most))]
        counted = None
    else:
        rows = rows[:, :most]
        counted = rows != 0
        if mask is not None and mask.shape == tensor.shape:
            counted = mask.reshape(len(mask), -1)[:_MOST_ROWS, :most].bool()
    size, width = rows.element_size(), rows.shape[1] * rows.element_size()
    content = read_bytes(rows)
    if counted is None:
        return [_digest(content[at * width : (at + 1) * width]) for at in range(len(rows))]
    # What lies between the first and the last one that counts.
    starts = counted.int().argmax(1).tolist()
    ends = (rows.shape[1] - counted.int().flip(1).argmax(1)).tolist()
    return [
        _digest(content[at * width + start * size : at * width + end * size])
        for at, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=6).hexdigest()


def read_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor on the host; without numpy, which torch may lack."""
    whole = tensor.contiguous()
    return ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size()) if whole.numel() else b""


def list_tensors(content: Any, *, depth: int = 4) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor) of every tensor in nested mappings, lists and tuples."""
    if isinstance(content, torch.Tensor):
        yield "", content
    elif depth and isinstance(content, Mapping):
        for key in list(content):
            for name, tensor in list_tensors(content[key], depth=depth - 1):
                yield f"{key}.{name}".rstrip("."), tensor
    elif depth and isinstance(content, list | tuple):
        for at, part in enumerate(content):
            for name, tensor in list_tensors(part, depth=depth - 1):
                yield f"{at}.{name}".rstrip("."), tensor


def digest_one_by_one(tensors: Iterable[torch.Tensor]) -> set[str]:
    """Return the digests of those tensors that are large enough to be told from each other."""
    found = [tensor for tensor in tensors if tensor.numel() >= _SHOWN]
    return set(digest_tensors(found)["digests"]) if found else set()
