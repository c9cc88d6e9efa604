"""Did a machine run the same at the start of Python in every cell that has ranks there? By their own records.

Machines may differ in it, as two distributions do: what counts is that one and the same ran something else.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tasks.process.reasons import Reason, explain

_RECORDED = "run_at_start"
"""Key of the record: machine -> module that Python imports by itself -> sha256 of its file."""

KnownStarts = Mapping[str, tuple[str, Mapping[str, str | None]]]
"""Machine -> who ran there first, and the modules that Python ran then."""


def collect_known_starts(records: Iterable[tuple[str, Mapping[str, Any]]]) -> KnownStarts:
    """Return what the first of these starts, each (whose, record of its ranks), ran on each machine."""
    known: dict[str, tuple[str, Mapping[str, str | None]]] = {}
    for whose, record in records:
        for machine, modules in record.get(_RECORDED, {}).items():
            known.setdefault(machine, (whose, modules))
    return known


def find_other_starts(
    record: Mapping[str, Any], where: str, known: KnownStarts, own: KnownStarts | None = None
) -> list[Reason]:
    """Return what Python ran otherwise at the start of these ranks than is known of the same machine.

    `own`: what is known from the same cell, of machines that others do not know. Where others know none of their
    machines, as after one was named anew, the ranks are compared with the first that they do know.
    """
    if not known:
        return []
    mine: Mapping[str, Mapping[str, str | None]] = record.get(_RECORDED, {})
    if not mine:
        return [
            explain(
                "no_record_of_start", "{where}: nothing was recorded of what Python ran at the start of its ranks",
                where=where,
            )
        ]  # fmt: skip
    if not known.keys() & mine.keys():
        known = dict.fromkeys(mine, next(iter(known.values())))
    known = {**(own or {}), **known}
    return [
        explain(
            "other_start",
            "{where}: Python on {machine} ran {module} {found} at its start, {whose} {expected}",
            where=where,
            machine=machine,
            module=name,
            found=_shorten(modules.get(name)),
            whose=whose,
            expected=_shorten(other),
        )
        for machine, modules in mine.items()
        if machine in known
        for whose, expected in [known[machine]]
        for name, other in expected.items()
        if modules.get(name) != other
    ]


def _shorten(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]
