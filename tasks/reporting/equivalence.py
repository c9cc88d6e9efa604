"""Does an update of N ranks equal that of one? The certificate of the stage `measure`, as a gate and for the report."""

from tasks.reporting import wording
from tasks.reporting.facts import Record
from tasks.reporting.gate import Finding, Verdict, finding, not_checked
from tasks.reporting.measured import arm_of
from tasks.reporting.outputs import Outputs
from tasks.reporting.stage_files import CertifiedCell


class Equivalence(Record):
    """A few updates of a cell's ranks against those of one process, for the gradient or for the weights."""

    cell: str
    """Name of the cell."""
    world_size: int
    """Number of ranks."""
    num_steps: int
    """Updates that were made."""
    compared: str
    """What was compared: gradient (of the first update, before clipping) or weights (after the last)."""
    relative_l2: float
    """L2 norm of the differences / L2 norm of the one process's."""
    max_abs: float
    """Largest absolute difference of an element."""
    is_bitwise_equal: bool
    """Whether all bits agree."""
    noise_floor: float
    """Relative L2 difference that adding the micro-batches up in another order makes, in one process."""
    tolerance: float
    """Relative L2 difference allowed."""
    verdict: Verdict
    """Of the cell."""


def update_equivalence(outputs: Outputs, cell: str) -> Finding | None:
    """Check the certificate of a cell that spreads an update over ranks."""
    facts, certificate = outputs.runs[cell].facts, outputs.certificate
    if facts.strategy == "single":
        return None
    if certificate is None:
        return not_checked(f"{cell}: there is no certificate.json; the stage measure makes it")
    one = next((one for one in certificate.cells if one.cell == cell), None)
    if one is None:
        return not_checked(f"{cell} has no certificate")
    parts = _parts(one)
    problems = [f"{cell}: {one.problem}"] if one.verdict == "failed" else []
    problems += [
        f"{cell}: the {part.compared} {part.relative_l2:.1e} apart, {part.tolerance:.1e} allowed"
        for part in parts
        if one.verdict == "passed" and not part.relative_l2 <= part.tolerance
    ]
    gaps = [f"{cell} has a certificate without figures"] * (one.verdict == "passed" and len(parts) < 2)
    gaps += [f"{cell}: {one.problem}"] * (one.verdict == "not checked")
    for name in ("code_digest", "base_model_digest", "machine_digest"):
        if getattr(facts, name) != getattr(certificate, name):
            what = name.removesuffix("_digest").replace("_", " ")
            gaps.append(f"{cell} was trained with another {what} than the one that the certificate is of")
    timed = outputs.measurement and arm_of(outputs.measurement, cell).global_batch_size
    if timed and timed != facts.global_batch_size:
        gaps.append(
            f"{cell} was timed on steps of {timed} samples (weak scaling), which are another training than the one of "
            f"{facts.global_batch_size} that the certificate is of"
        )
    if gaps and not problems:
        return not_checked("; ".join(gaps))
    return finding(
        problems,
        otherwise=f"{_in_words(one, outputs.params.train.precision)}. Allowed is {certificate.margin:g} times what "
        "re-ordering the sums alone makes, at least that many fp32 roundings",
        numbers={
            f"{part.compared}_{name}": getattr(part, name)
            for part in parts
            for name in ("relative_l2", "noise_floor", "tolerance")
        },
    )


def equivalences(outputs: Outputs) -> list[Equivalence]:
    """Return what the certificates compared, cell by cell; [] without any."""
    cells = outputs.certificate.cells if outputs.certificate else []
    return [part for one in cells if one.cell in outputs.runs for part in _parts(one)]


def _parts(one: CertifiedCell) -> list[Equivalence]:
    """Return what was compared of a cell: gradient and weights, as far as there is something."""
    parts = []
    for what in ("gradient", "weights"):
        found, floor, tolerance = (
            getattr(place, what) if place else None for place in (one, one.noise_floor, one.tolerance)
        )
        if found and floor and tolerance:
            parts.append(
                Equivalence(
                    cell=one.cell,
                    world_size=one.world_size,
                    num_steps=one.num_steps,
                    compared=what,
                    **found.model_dump(include={"relative_l2", "max_abs", "is_bitwise_equal"}),
                    noise_floor=floor.relative_l2,
                    tolerance=tolerance,
                    verdict=one.verdict,
                )
            )
    return parts


def _in_words(one: CertifiedCell, precision: str) -> str:
    places = {"gradient": "of the first update", "weights": f"after {one.num_steps} updates"}
    parts = [
        f"{part.compared} {places[part.compared]} "
        f"{'bitwise equal' if part.is_bitwise_equal else f'{part.relative_l2:.1e} apart'} "
        f"(noise floor {wording.difference(part.noise_floor)}, {part.tolerance:.1e} allowed)"
        for part in _parts(one)
    ]
    where = ""
    if one.precision not in (None, precision):
        where = f", both in {one.precision} (in {precision} their kernels round differently)"
    return f"{one.cell} against one process{where}: {', '.join(parts)}"
