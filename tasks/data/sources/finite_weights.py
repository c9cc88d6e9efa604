"""A base model's weights are finite numbers, also where no row of the data uses them: their differences have to be."""

from collections.abc import Collection
from pathlib import Path

from tasks.process.failure import DataError

_WITHOUT_OTHERS = ("torch.float4_e2m1fn_x2",)
"""Types that can hold nothing but finite numbers; torch does not ask them."""


def refuse_not_finite(folder: Path, place: str, *, parameters: Collection[str]) -> None:
    """Raise DataError for the first of these parameters that holds NaN or an infinity, and for NaN in any other tensor.

    The embedding of a token that no text has may hold them and train well, but no difference between two updates of it
    is a number. Buffers may hold infinities, as masks do, and files may have other names than the model. One tensor at
    a time is read.
    """
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            for name in sorted(weights.keys()):
                values = weights.get_tensor(name)
                if str(values.dtype) in _WITHOUT_OTHERS or not values.is_floating_point():
                    continue
                wrong = ~values.isfinite() if name in parameters else values.isnan()
                if number := int(wrong.sum()):
                    raise DataError(
                        f"{place}: {file.name}: {name} holds {number:,} values that are no finite numbers; allowed: "
                        "finite ones, such as 0 in rows of the embedding that no token uses"
                    )
