"""Weights of a model as a file, and as a checksum."""

import contextlib
import hashlib
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import torch
from torch import Tensor, nn

from training.model.sync_norm import list_statistics
from training.process.failure import BadCheckpointError
from training.process.safe_loading import require_plain_archive, require_safe_torch
from training.process.torch_private import is_fake

_NUM_DIFFERENCES_NAMED = 5
_WHAT_A_BAD_FILE_RAISES = (
    OSError, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError, AssertionError, MemoryError,
    pickle.UnpicklingError,
)  # fmt: skip


def has_numbers(model: nn.Module) -> bool:
    """Return False for a model whose tensors have shapes only, as in a rehearsal: what is tried on one says nothing."""
    return not any(is_fake(part) for part in model.parameters())


@contextlib.contextmanager
def without_deepspeed() -> Iterator[None]:
    """Keep `save_pretrained` from importing deepspeed where it is installed: seconds, and a warning that is none."""
    if "deepspeed" in sys.modules:
        yield
        return
    # The import system takes it for a package that is not installed.
    sys.modules["deepspeed"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["deepspeed"]


def collect_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict on the CPU; what is one tensor under several names stays one, and is stored once."""
    tied = map_tied_names(model)
    copies: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        first = tied.get(name, name)
        copies[name] = copies[first] if first in copies else copy_alone(tensor)
    return copies


def copy_alone(tensor: Tensor) -> Tensor:
    """Return it on the CPU, without what lies beside it in memory, which would be saved with it."""
    result = tensor.detach().cpu()
    return result if result.untyped_storage().nbytes() == result.nbytes else result.clone()


def map_tied_names(model: nn.Module) -> dict[str, str]:
    """Return each further name of a parameter or buffer that has several -> its first.

    By what the module holds. A data pointer says nothing of it: what was gathered may lie where something else lay.
    """
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    return {name: its for name, tensor in named if (its := first.setdefault(id(tensor), name)) != name}


def load_transformer(kind: str, model_dir: Path, *, checkpoint: Path | None = None) -> nn.Module:
    """Return the model of a transformers folder in fp32 on the CPU, or with the weights of a checkpoint file.

    `kind`: the class of transformers that chooses one. Raises BadCheckpointError if the checkpoint is not loadable or
    is not one of this model.
    """
    # Here, not above: several seconds that the data and the plan can do without.
    import transformers

    transformers.utils.logging.disable_progress_bar()
    # transformers 5 would else load bf16 weights as bf16, which lose small updates to rounding.
    model: nn.Module = getattr(transformers, kind).from_pretrained(
        model_dir, config=_read_config(model_dir), dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    if checkpoint is not None:
        load_weights(model, checkpoint)
    return model


def outline_transformer(kind: str, model_dir: Path) -> nn.Module:
    """Return the model that a folder's config.json describes, as `load_transformer` gives it but for its numbers."""
    import transformers

    config = _read_config(model_dir)
    model: nn.Module = getattr(transformers, kind).from_config(config, dtype=torch.float32, trust_remote_code=False)
    return model


def _read_config(model_dir: Path) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_dir, local_files_only=True, trust_remote_code=False)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    return config


def load_weights(model: nn.Module, file: Path) -> None:
    """Load a state dict file into the model, all of it or nothing.

    Raises BadCheckpointError, naming the first differences in names, shapes and types, before any weight changes.
    """
    weights = load_tensors(file)
    require_no_differences(file, list_differences(weights, model.state_dict()))
    model.load_state_dict(weights, strict=True)


def list_differences(tensors: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> list[str]:
    """Return in what names, shapes and types `tensors` differ from the wanted ones, one line each."""
    results = [f"{name} is missing" for name in wanted if name not in tensors]
    results += [f"{name} is not in the model" for name in tensors if name not in wanted]
    for name, tensor in wanted.items():
        got = tensors.get(name)
        if got is not None and (not isinstance(got, Tensor) or (got.shape, got.dtype) != (tensor.shape, tensor.dtype)):
            results.append(f"{name} is {_describe_value(got)}, the model has {_describe_value(tensor)}")
    return results


def require_no_differences(file: Path, differences: Sequence[str]) -> None:
    """Raise BadCheckpointError with the first differences, if there are any."""
    if differences:
        named = "; ".join(differences[:_NUM_DIFFERENCES_NAMED])
        raise BadCheckpointError(f"{file}: {len(differences)} differences from the model: {named}")


def load_tensors(file: Path, *, is_mapped: bool = False) -> dict[str, Any]:
    """Return what torch saved in the file, on the CPU, without running any code of it.

    `is_mapped`: it is read when it is looked at, and not to be changed. Raises BadCheckpointError if the file is
    missing, broken or holds anything but tensors and plain values.
    """
    require_safe_torch(torch.__version__)
    try:
        require_plain_archive(file)
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=is_mapped)
    except _WHAT_A_BAD_FILE_RAISES as error:
        raise BadCheckpointError(f"{file}: not loadable: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(state, dict):
        raise BadCheckpointError(f"{file}: holds a {type(state).__name__}; allowed: a dict")
    _require_plain_tensors(state, file)
    return state


def _require_plain_tensors(state: Mapping[Any, Any], file: Path) -> None:
    """Raise BadCheckpointError for a tensor that claims more elements than it has stored: using it would make them."""
    waiting: list[Any] = [state]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple | set):
            waiting.extend(value)
        elif isinstance(value, Tensor):
            is_plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
            if not is_plain or value.nbytes > value.untyped_storage().nbytes():
                raise BadCheckpointError(
                    f"{file}: {_describe_value(value)} is more than is stored; allowed: plain tensors"
                )


def save_tensors(state: Mapping[str, Any], file: Path) -> None:
    """Write what `load_tensors` reads; raises OSError if the disk does not take it."""
    with file.open("wb") as stream:
        sink = _Sink(stream)
        try:
            torch.save(state, cast(IO[bytes], sink))
        except RuntimeError:
            if sink.error is not None:
                raise sink.error from None
            raise


class _Sink:
    """A file for torch.save, which hides the error of a full disk behind one of its own."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._stream.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._stream.flush()


def compute_parameter_checksum(model: nn.Module) -> str:
    """Return the sha256 (hex) of the names and bytes of all parameters, sorted by name; tied ones count once.

    Running statistics of batch normalisation count as well: a model computes otherwise with others.
    """
    digest = TensorDigest()
    for name, tensor in sorted({**dict(model.named_parameters()), **list_statistics(model)}.items()):
        digest.add(name, tensor)
    return digest.hex()


class TensorDigest:
    """The sha256 of names and bytes of tensors that come one after another, in the order of their names."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, name: str, tensor: Tensor) -> None:
        """Take the next one."""
        self._digest.update(name.encode() + b"\0")
        self._digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)

    def hex(self) -> str:
        """Return the digest of all that came."""
        return self._digest.hexdigest()


def _describe_value(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
