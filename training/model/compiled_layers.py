"""A model whose layers are compiled one by one (torch.compile)."""

import os
import shutil

from torch import nn

from training.process.failure import UnfitModelError


def compile_layers(model: nn.Module, device: str) -> None:
    """Have each layer compiled at its first call, for any length: they are alike, so that one compilation serves all.

    Layer by layer the gradients still come in time to be exchanged during the backward.
    """
    compilers = [os.environ["CXX"]] if "CXX" in os.environ else ["g++", "clang++"]
    if device == "cpu" and not any(shutil.which(name) for name in compilers):
        raise UnfitModelError(
            f"compile: true needs a C++ compiler on CPU, and there is no {' or '.join(compilers)}; install one or use "
            "compile: false"
        )
    # In this process: helpers of its own would outlive a rank that is killed.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch._dynamo
    import torch.fx.experimental._config as shapes

    # Else a length that happens to equal the hidden size is taken to be always that.
    shapes.use_duck_shape = False
    # It cuts a whole model's graph where DDP's buckets end; layers are cut already.
    torch._dynamo.config.optimize_ddp = False
    layers = next((part for part in model.modules() if isinstance(part, nn.ModuleList)), [model])
    for layer in layers:
        layer.compile(dynamic=True)
