"""Does an update of N ranks equal that of one? The certificate of the stage `measure`, as a gate and for the report."""

from tasks.gates.setting import find_certificate_problems
from tasks.process import wording
from tasks.process.reasons import Reason, explain
from tasks.records.arm_figures import select_arm
from tasks.records.certificate import CertifiedCell
from tasks.records.facts import Record
from tasks.records.gate import Finding, Verdict, make_finding, make_unchecked_finding
from tasks.records.outputs import Outputs


class Equivalence(Record):
    """Updates of a cell's ranks against those of one process from the same state: the one that is farthest apart."""

    cell: str
    """Name of the cell."""
    world_size: int
    """Number of ranks."""
    global_batch_size: int | None = None
    """Samples per update; null in results of an earlier version."""
    num_steps: int
    """Updates that were made."""
    compared: str
    """What was compared: gradient (before clipping) or weights (what an update changed in them)."""
    relative_l2: float
    """L2 norm of the differences / L2 norm of the one process's gradient, or of its change of the weights."""
    max_abs: float
    """Largest absolute difference of an element."""
    is_bitwise_equal: bool
    """Whether all bits agree."""
    noise_floor: float
    """Relative L2 difference that another order of the micro-batches makes of the gradient, rounding of the weights."""
    tolerance: float
    """Relative L2 difference allowed."""
    verdict: Verdict
    """Of the cell."""


def check_update_equivalence(outputs: Outputs, cell: str) -> Finding | None:
    """Check the certificate of a cell that spreads an update over ranks."""
    facts, certificate = outputs.runs[cell].facts, outputs.certificate
    if facts.strategy == "single":
        return None
    if certificate is None:
        return make_unchecked_finding(
            explain("no_certificate", "{cell}: there is no certificate.json; the stage measure makes it", cell=cell)
        )
    # In weak scaling it was timed on larger steps than trained, which is another training: both have to be certified.
    timed = select_arm(outputs.measurement, cell).global_batch_size if outputs.measurement else facts.global_batch_size
    problems, gaps, found = list[Reason](), list[Reason](), list[CertifiedCell]()
    for batch in dict.fromkeys((facts.global_batch_size, timed)):
        one = next((one for one in certificate.cells if (one.cell, one.global_batch_size) == (cell, batch)), None)
        if one is None:
            gaps.append(
                explain(
                    "batch_not_certified", "{cell} has no certificate of updates of {batch} samples",
                    cell=cell, batch=batch,
                )
            )  # fmt: skip
            continue
        found.append(one)
        problems += _find_problems(one) + find_certificate_problems(one, outputs.runs[cell])
        for code, template, is_so in (
            (
                "certificate_without_setting",
                "{cell} has a certificate that does not say what its updates were made with",
                one.verdict == "passed" and not one.settings,
            ),
            (
                "certificate_without_figures", "{cell} has a certificate without figures",
                one.verdict == "passed" and len(_list_parts(one)) < 2,
            ),
            ("not_certified", "{cell}: {problem}", one.verdict == "not checked"),
        ):  # fmt: skip
            gaps += [explain(code, template, cell=cell, problem=one.problem)] * is_so
    for name in ("numerics_version", "base_model_digest", "machine_digest"):
        if getattr(facts, name) != getattr(certificate, name):
            what = name.removesuffix("_digest").replace("_", " ")
            gaps.append(
                explain(
                    "certificate_of_another", "{cell} was trained with another {what} than the one that the "
                    "certificate is of", cell=cell, what=what,
                )
            )  # fmt: skip
    if gaps and not problems:
        return make_unchecked_finding(*gaps)
    told = [_describe_certificate(one, outputs.params.train.precision) for one in found]
    if len(found) > 1:
        told = [f"{what} (updates of {one.global_batch_size} samples)" for what, one in zip(told, found, strict=True)]
    return make_finding(
        problems,
        otherwise=explain(
            "passed",
            "{found}. Each update began from the same state on both sides; allowed is {margin:g} times what "
            "re-ordering the sums alone makes, at least that many fp32 roundings",
            found="; ".join(told),
            margin=certificate.margin,
            # Of several, those of the last, which the speedup is of.
            **{
                f"{part.compared}_{name}": getattr(part, name)
                for one in found
                for part in _list_parts(one)
                for name in ("relative_l2", "noise_floor", "tolerance")
            },
        ),
    )


def _find_problems(one: CertifiedCell) -> list[Reason]:
    if one.verdict == "failed":
        return [explain("update_differs", "{cell}: {problem}", cell=one.cell, problem=one.problem)]
    return [
        explain(
            "update_differs",
            "{cell}: the {compared} {relative_l2:.1e} apart, {tolerance:.1e} allowed",
            cell=one.cell,
            compared=part.compared,
            relative_l2=part.relative_l2,
            tolerance=part.tolerance,
        )
        for part in _list_parts(one)
        if one.verdict == "passed" and not part.relative_l2 <= part.tolerance
    ]


def list_equivalences(outputs: Outputs) -> list[Equivalence]:
    """Return what the certificates compared, cell by cell; [] without any."""
    cells = outputs.certificate.cells if outputs.certificate else []
    return [part for one in cells if one.cell in outputs.runs for part in _list_parts(one)]


def _list_parts(one: CertifiedCell) -> list[Equivalence]:
    """Return what was compared of a cell: gradient and weights, as far as there is something."""
    parts = []
    for what in ("gradient", "weights"):
        found, floor, tolerance = (
            getattr(place, what) if place else None for place in (one, one.noise_floor, one.tolerance)
        )
        if found and floor is not None and tolerance:
            parts.append(
                Equivalence(
                    cell=one.cell,
                    world_size=one.world_size,
                    global_batch_size=one.global_batch_size,
                    num_steps=one.num_steps,
                    compared=what,
                    relative_l2=found.relative_l2,
                    max_abs=found.max_abs,
                    is_bitwise_equal=found.is_bitwise_equal,
                    noise_floor=floor,
                    tolerance=tolerance,
                    verdict=one.verdict,
                )
            )
    return parts


def _describe_certificate(one: CertifiedCell, precision: str) -> str:
    places = {"gradient": f"of {one.num_steps} updates", "weights": "as each update changed them"}
    parts = [
        f"{part.compared} {places[part.compared]} "
        f"{'bitwise equal' if part.is_bitwise_equal else f'at most {part.relative_l2:.1e} apart'} "
        f"(noise floor {wording.format_difference(part.noise_floor)}, {part.tolerance:.1e} allowed)"
        for part in _list_parts(one)
    ]
    where = ""
    if one.precision not in (None, precision):
        where = f", both in {one.precision} (in {precision} their kernels round differently)"
    if (packed := one.packed_kernels) is not None:
        parts.append(
            f"packed rows in {precision} {packed.found.relative_l2:.1e} from the same rows unpacked, where {precision} "
            f"alone makes {wording.format_difference(packed.noise_floor)} ({packed.tolerance:.1e} allowed)"
        )
    return f"{one.cell} against one process{where}: {', '.join(parts)}"
