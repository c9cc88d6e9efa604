"""Linear layers whose weights wait in 4 bits (NF4, Dettmers et al. 2023, arXiv:2305.14314) and are not trained.

bitsandbytes rounds them and multiplies by them: each weight is one of 16 levels times the largest of its block of 64,
4.5 bits in all. What is rounded is another model, of which everything else has the rounded weights in fp32. Its own
layer is not taken: that rounds biases for good, and packs weights anew in evaluation.
"""

import copy
import logging
from typing import Any

import torch
from torch import Tensor, nn

from training.process.failure import UnfitModelError

PACKAGE = "bitsandbytes"
"""What has to be installed; `make params` looks for it."""


class FourBitLinear(nn.Linear):
    """What the layer computes, but by its weight rounded; `weight` is packed: (bytes, 1) uint8."""

    def __init__(self, plain: nn.Linear, *, device: torch.device, dtype: torch.dtype) -> None:
        """`device`: where the weight is rounded and stays; `dtype`: in which most products are."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = plain.in_features, plain.out_features
        packed, self._state = _quantise(plain.weight.detach().to(device))
        # Else a product in 16 bit would make the weight in fp32 first, for the same bits.
        self._state.dtype = dtype
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = plain.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (..., out_features) in the dtype that an ordinary layer gives, under autocast or not."""
        from bitsandbytes import matmul_4bit

        kind = inputs.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else inputs.dtype
        bias = None if self.bias is None else self.bias.to(dtype)
        tensor: Tensor = matmul_4bit(inputs.to(dtype), self.weight, quant_state=self._state, bias=bias)
        return tensor

    def widen(self) -> Tensor:
        """Return the weight that it multiplies by: (out_features, in_features) float32, where it is."""
        return _dequantise(self.weight.detach(), self._state)

    @property
    def num_bytes_saved(self) -> int:
        """How many bytes the packed weight is smaller than that."""
        return 4 * self.in_features * self.out_features - self.weight.nbytes


def round_weight(weight: Tensor, *, device: torch.device) -> Tensor:
    """Return a weight, (outputs, inputs), as a layer has it that rounded it there: float32, where it was."""
    return _dequantise(*_quantise(weight.detach().to(device))).to(weight.device)


def hush() -> None:
    """Have bitsandbytes, which peft imports wherever it is, not name a package for inference that is not there."""
    logging.getLogger(PACKAGE).setLevel(logging.ERROR)


def _quantise(weight: Tensor) -> tuple[Tensor, Any]:
    """Return its packed levels, (bytes, 1) uint8, and all else that makes it again. Raises UnfitModelError."""
    hush()
    try:
        # Here, not above: seconds, and no part of the ordinary set-up.
        from bitsandbytes.functional import quantize_4bit
    except ImportError as error:
        raise UnfitModelError(
            f"train.adapter.base: nf4 needs bitsandbytes ({error}); install it with: make extras"
        ) from None
    packed, state = quantize_4bit(weight.float(), blocksize=64, compress_statistics=False, quant_type="nf4")
    return packed, state


def _dequantise(packed: Tensor, state: Any) -> Tensor:
    from bitsandbytes.functional import dequantize_4bit

    whole = copy.copy(state)
    whole.dtype = torch.float32
    tensor: Tensor = dequantize_4bit(packed, whole)
    return tensor
