"""Small digests of large tensors: a few elements of each, evenly spread, the same ones on every rank."""

import ctypes
import functools
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, islice
from typing import Any

import torch
from torch.nn.parameter import is_lazy

_ELEMENTS = 64
_MOST_TENSORS = 4000
_ROW_BYTES = 8192
_MOST_ROWS = 4096
_SHOWN = 8
_LISTS = (list, tuple)
_HOLDING = (*_LISTS, Mapping)
_IDS = "input_ids"
_BESIDE = re.compile(r"labels?|label_ids|targets?|y|.*mask|.*type_ids|.*position_?ids|.*position|idx|index|weights?")
"""Names of inputs that a row is not known by."""


def digest_tensors(tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Return a digest per tensor, the first few sampled elements and the root of all their squares.

    `is_sharded` says that this rank holds only a part of some tensor, which others then need not hold.
    """
    with torch.no_grad():
        every: list[Any] = list(tensors[:_MOST_TENSORS])
        is_sharded = any(hasattr(tensor, "to_local") for tensor in every)
        picked = [_pick(get_elements(tensor.detach())) for tensor in every]
        if len({item.dtype for item in picked}) > 1:
            picked = [item.to(torch.float64) for item in picked]
        # One copy from the device for all of them.
        values = torch.cat(picked).cpu().to(torch.float64) if picked else torch.empty(0, dtype=torch.float64)
    content, ends = read_bytes(values), list(accumulate(item.numel() * values.element_size() for item in picked))
    digests = [f"{zlib.crc32(content[start:end]):08x}" for start, end in zip([0, *ends], ends, strict=False)]
    head = [float(value) for value in values[:: max(1, len(values) // _SHOWN)][:_SHOWN]]
    return {"digests": digests, "head": head, "l2": float(values.square().sum().sqrt()), "is_sharded": is_sharded}


def get_elements(tensor: Any) -> torch.Tensor:
    """Return what this rank holds of a tensor that is sharded, and of a sparse one the rows that there are."""
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _pick(tensor: torch.Tensor) -> torch.Tensor:
    number = tensor.numel()
    stride = max(1, number // _ELEMENTS)
    if tensor.is_contiguous():
        return tensor.as_strided((min(_ELEMENTS, -(-number // stride)),), (stride,))
    return tensor.reshape(-1)[::stride][:_ELEMENTS]


def digest_rows(tensor: torch.Tensor, mask: torch.Tensor | None = None) -> list[str]:
    """Return a digest per row of (num_rows, ...), of at most 8 KiB of each; tokens that a mask leaves out don't count.

    Without a mask zeros at the ends of a row of integers are taken for padding.
    """
    size = tensor.element_size()
    most = max(1, _ROW_BYTES // size)
    if tensor.is_floating_point() or tensor.dtype == torch.bool or tensor.numel() == len(tensor):
        flat = tensor.detach().reshape(len(tensor), -1)[:_MOST_ROWS]
        return [_digest(row) for row in read_rows(flat[:, :: max(1, -(-flat.shape[1] // most))], _ROW_BYTES)]
    rows = read_rows(tensor, _ROW_BYTES)
    if mask is None or mask.shape != tensor.shape:
        return [_digest(_cut(row, size, row, size)) for row in rows]
    text = read_rows(mask, most * mask.element_size())
    return [_digest(_cut(row, size, of_row, mask.element_size())) for row, of_row in zip(rows, text, strict=True)]


def _cut(row: bytes, size: int, text: bytes, told_size: int) -> bytes:
    """Return what of the row lies between the first and the last element whose place in `told` is not zero."""
    end = -(-len(text.rstrip(b"\0")) // told_size)
    start = (len(text) - len(text.lstrip(b"\0"))) // told_size
    return row[start * size : end * size] if end else row


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=6).hexdigest()


def is_on_host(tensor: torch.Tensor) -> bool:
    """Return whether the elements of a tensor lie in this process's memory, one after the other."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and _is_plain(tensor)


def _is_plain(tensor: torch.Tensor) -> bool:
    kind = type(tensor)
    return kind is torch.Tensor or kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def holds_whole_numbers(tensor: torch.Tensor) -> bool:
    """Return whether a tensor may hold ids: integers, or floats that are whole and not just some 0 and 1."""
    if not tensor.is_floating_point():
        return tensor.dtype is not torch.bool and not tensor.is_complex()
    if not tensor.numel():
        return False
    few = tensor.detach().reshape(-1)[:_ROW_BYTES]
    return bool((few == few.round()).all() & (few.abs().max() > 1))


def read_bytes(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor on the host; without numpy, which torch may lack."""
    whole = tensor.contiguous()
    return ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size()) if whole.numel() else b""


def read_rows(tensor: torch.Tensor, most_bytes: int) -> list[bytes]:
    """Return the first bytes of each row of (num_rows, ...) on the host, in whole elements, at least one; of 4096 rows.

    This is asked at every step: operations of torch would cost most of what the observer does.
    """
    num_rows, size = len(tensor), tensor.element_size()
    if not tensor.numel():
        return [b""] * min(num_rows, _MOST_ROWS)
    kept = max(1, most_bytes // size)
    if not tensor.is_contiguous():
        tensor = tensor.detach().reshape(num_rows, -1)[:_MOST_ROWS, :kept].contiguous()
        num_rows = len(tensor)
    width, address = tensor.numel() // num_rows * size, tensor.data_ptr()
    num_rows = min(num_rows, _MOST_ROWS)
    if width > kept * size:
        return [ctypes.string_at(address + row * width, kept * size) for row in range(num_rows)]
    content = ctypes.string_at(address, num_rows * width)
    return [content[row * width : (row + 1) * width] for row in range(num_rows)]


def list_tensors(content: Any, *, depth: int = 4) -> list[tuple[str, torch.Tensor]]:
    """Return (name, tensor) of every tensor in nested mappings, lists and tuples."""
    if isinstance(content, torch.Tensor):
        return [("", content)]
    if depth and isinstance(content, _LISTS):
        parts: Iterable[tuple[Any, Any]] = enumerate(content)
    elif depth and isinstance(content, Mapping):
        parts = [(key, content[key]) for key in list(content)]
    else:
        return []
    results: list[tuple[str, torch.Tensor]] = []
    for key, part in parts:
        if isinstance(part, torch.Tensor):
            results.append((str(key).rstrip("."), part))
        elif isinstance(part, _HOLDING):
            results += [(f"{key}.{name}".rstrip("."), tensor) for name, tensor in list_tensors(part, depth=depth - 1)]
    return results


def put_rows_first(results: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    """Return (name, tensor) of the inputs, what a row is known by first: ids, then what has no label's or mask's name.

    Batches of transformers may begin with `labels`, of which many rows have the same.
    """
    return results if len(results) < 2 else sorted(results, key=lambda pair: _rank_name(pair[0]))


@functools.cache
def _rank_name(whole: str) -> int:
    name = whole.rpartition(".")[2]
    return 0 if name == _IDS else 2 if _BESIDE.fullmatch(name) else 1


def count_tokens(rows: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    """Return how many tokens each row of (rows, places) has: those that a mask takes, or without padding at its end.

    That is zeros, or one id that is repeated.
    """
    if mask is not None and mask.shape == rows.shape:
        return [int(number) for number in (mask != 0).sum(1)]
    run = (rows == rows[:, -1:]).flip(1).cumprod(1).sum(1)
    return [int(number) for number in rows.shape[1] - run * ((run > 1) | (rows[:, -1] == 0))]


def digest_one_by_one(tensors: Iterable[torch.Tensor], *dtypes: torch.dtype) -> set[str]:
    """Return the digests of those tensors that are large enough to be told from each other, rounded to each type, too.

    They may lie on several devices.
    """
    large = islice(filter(_is_large, tensors), _MOST_TENSORS)
    few = [_pick(get_elements(tensor.detach())).cpu() for tensor in large]
    # Zeros and ones are those of many tensors.
    few = [item for item in few if len(item.double().unique()) > 1]
    of_types = [few, *([item.to(dtype) for item in few] for dtype in dtypes)]
    return {digest for every in of_types for digest in digest_tensors(every)["digests"]}


def _is_large(tensor: Any) -> bool:
    """Return whether a tensor has more than a few elements, and they are there to be read."""
    if is_lazy(tensor) or tensor.is_meta or tensor.numel() < _SHOWN:
        return False
    return hasattr(tensor, "to_local") or _is_plain(tensor)


def looks_like_mask(name: str, tensor: torch.Tensor, first: torch.Tensor) -> bool:
    """Return whether an input without a name is one 0 or 1 for each token."""
    if not name.startswith("0.") or tensor.shape != first.shape or tensor.dim() < 2 or tensor.is_floating_point():
        return False
    content = read_bytes(tensor) if is_on_host(tensor) else b""
    return 1 in content and not content.translate(None, b"\0\1")
