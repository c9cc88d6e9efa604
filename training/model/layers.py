"""The layers of a model: compiled one by one, or run again in the backward in place of what they would keep."""

import contextlib
import os
import shutil
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from training.process.failure import UnfitModelError
from training.process.torch_private import is_compiler_error, set_compiler


def list_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that the model's own class names as those that are not to be split; none if it names none."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    return [part for part in model.modules() if type(part).__name__ in names]


def recompute_layers(model: nn.Module) -> None:
    """Have each layer keep only what goes into it, and run again in the backward (Chen et al. 2016): the same bits.

    Random numbers are drawn again as they were. Raises UnfitModelError for a model that cannot.
    """
    whole: Any = model
    if not getattr(model, "supports_gradient_checkpointing", False):
        name = type(model).__name__
        raise UnfitModelError(f"activation_checkpointing: layers, which {name} is not made for; allowed: none")
    whole.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout, gradients and autocast off, while inside."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.autocast(next(model.parameters()).device.type, enabled=False):
            yield
    finally:
        model.train(was_training)


_COMPILED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def compile_layers(model: nn.Module, device: str) -> None:
    """Have each layer compiled at its first call, for any length: they are alike, so that one compilation serves all.

    Layer by layer the gradients still come in time to be exchanged during the backward.
    """
    # On a GPU Triton has a C compiler make what launches a kernel.
    variable, language, names = ("CXX", "C++", ["g++", "clang++"]) if device == "cpu" else ("CC", "C", ["gcc", "clang"])
    compilers = [os.environ[variable]] if variable in os.environ else names
    if not any(shutil.which(name) for name in compilers):
        raise UnfitModelError(
            f"compile: true needs a {language} compiler on {device}, and there is no {' or '.join(compilers)}; install "
            "one or use compile: false"
        )
    # In this process: helpers of its own would outlive a rank that is killed.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    set_compiler()
    layers = next((part for part in model.modules() if isinstance(part, nn.ModuleList)), [model])
    for layer in layers:
        layer.compile(dynamic=True)
    _COMPILED.add(model)


def is_compiled(model: nn.Module) -> bool:
    """Return whether its layers were given to the compiler."""
    return model in _COMPILED


@contextlib.contextmanager
def explain_failed_compilation() -> Iterator[None]:
    """Have what torch cannot compile, while inside, raise UnfitModelError in one line: nothing is left uncompiled."""
    try:
        yield
    except Exception as error:
        if not is_compiler_error(error):
            raise
        reason = " ".join(str(error).split())[:300]
        raise UnfitModelError(
            f"compile: true, but torch cannot compile the model here ({reason}); use compile: false"
        ) from error
