"""Which points of the gradient noise were taken at this training's own weights; another's say nothing of its batch."""

from tasks.process import wording
from tasks.records.noise_scale import NoiseScale
from tasks.records.outputs import Outputs


def select_own_points(outputs: Outputs) -> list[NoiseScale]:
    """Return the points that were taken at the base model or at a checkpoint of the baseline, in their order."""
    own = _list_own_digests(outputs)
    return [one for one in outputs.evaluation.noise_scales if _is_own(one, own)]


def explain_left_out(outputs: Outputs) -> str | None:
    """Return which points are of other weights, and of which, as part of a sentence; None where there are none."""
    own = _list_own_digests(outputs)
    others = [one for one in outputs.evaluation.noise_scales if not _is_own(one, own)]
    if not others:
        return None
    told = [
        f"{one.point} (taken at {_shorten(one.weights_digest)}, its checkpoint is "
        f"{_shorten(own.get((one.range, one.epoch)))})"
        for one in others
    ]
    return (
        f"the noise of gradients is not of this training's weights, and left out, at {wording.join_names(told)}: "
        "dvc repro evaluate takes it anew"
    )


def _list_own_digests(outputs: Outputs) -> dict[tuple[str, int], str | None]:
    """Return (range, epoch) -> the digest of the baseline's weights there; epoch 0: the base model's."""
    first, run = str(outputs.params.ranges[0]), outputs.baseline
    ends = {(one.facts.range, one.facts.epoch): one.find_weights_digest(run.facts.model_name) for one in run.segments}
    return {(first, 0): outputs.base_model.digest, **ends}


def _is_own(one: NoiseScale, own: dict[tuple[str, int], str | None]) -> bool:
    return one.weights_digest is not None and one.weights_digest == own.get((one.range, one.epoch))


def _shorten(digest: str | None) -> str:
    return "weights that nothing names" if digest is None else digest[:12]
