"""Of what the code asks of a device: bytes as operations touch them, by hand."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from training.probing.live_memory import LiveMemory
from training.process.torch_private import fakes_sums_in_fp32

_ROWS, _WIDE, _FEW = 16, 1000, 3
_WIDE_BYTES, _INDEX_BYTES, _FEW_BYTES = 4 * _ROWS * _WIDE, 8 * _ROWS * _FEW, 4 * _ROWS * _FEW


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda wide, few, index, half: wide * wide, 3 * _WIDE_BYTES),
        (lambda wide, few, index, half: wide.mul_(2.0), 2 * _WIDE_BYTES),
        (lambda wide, few, index, half: wide.gather(1, index), 2 * _FEW_BYTES + _INDEX_BYTES),
        (lambda wide, few, index, half: torch.mul(wide, 2.0, out=half), 1.5 * _WIDE_BYTES),
        (
            lambda wide, few, index, half: torch.nn.functional.embedding(index[:, 0], wide),
            2 * _WIDE_BYTES + _INDEX_BYTES // _FEW,
        ),
    ],
    ids=["product", "in place", "gather", "out", "embedding"],
)
def test_an_operation_moves_what_it_reads_and_what_it_writes(run, expected):
    with FakeTensorMode(), LiveMemory() as memory:
        wide, half = torch.empty(_ROWS, _WIDE), torch.empty(_ROWS, _WIDE, dtype=torch.bfloat16)
        few, index = torch.empty(_ROWS, _FEW), torch.empty(_ROWS, _FEW, dtype=torch.int64)
        run(wide, few, index, half)
    assert memory.work.other_bytes == expected
    assert memory.work.num_kernels == 1


@pytest.mark.skipif(not fakes_sums_in_fp32(), reason="this torch cannot, without memory")
def test_a_product_added_up_in_fp32_reads_and_writes_its_sum_once():
    with FakeTensorMode(), LiveMemory() as memory:
        left, right = torch.empty(8, 4, dtype=torch.bfloat16), torch.empty(4, 6, dtype=torch.bfloat16)
        total = torch.empty(8, 6)
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    assert memory.work.products == {(2.0 * 8 * 4 * 6, 2 * (8 * 4 + 4 * 6) + 2 * 4 * 8 * 6, True): 1}
