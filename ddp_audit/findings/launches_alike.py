"""Does every launch of a cell do the same, from the same start?"""

from ddp_audit.launched import Audit, Launched
from ddp_audit.process.findings import Finding, make_finding
from ddp_audit.process.wording import explain

NAME = "Launches are alike"
QUESTION = "Does every launch of a cell make as many steps, and none go on from what an earlier launch has written?"
CLASS = "unlike cells"
SAYS = {
    "other_numbers_of_steps": "The launches of {cell} are unlike: they made {steps_of_launches} steps",
    "went_on": "Launch {launch} of {cell} goes on from an earlier one: it reads {path}, which {earlier} wrote",
}
REMEDY = (
    "let a launch write where no other one reads ({cell} and {launch} in SCRIPT stand for its cell and number), and "
    "begin anew"
)


def find(audit: Audit, cell: str) -> Finding | None:
    """Compare the steps of launches that ended by themselves, and the files that they wrote and read."""
    launches = audit.launches[cell]
    steps = [launched.num_steps for launched in launches if not launched.was_ended and not launched.is_failed]
    problems = []
    if len(set(steps)) > 1:
        problems.append(
            explain(
                "other_numbers_of_steps", "{cell}: its launches made {steps_of_launches} steps",
                cell=cell, steps_of_launches=steps,
            )
        )  # fmt: skip
    for number, launched in enumerate(launches, start=1):
        for path, earlier in _list_gone_on_from(audit, launched):
            problems.append(
                explain(
                    "went_on", "{cell}: launch {launch} reads {path}, which {earlier} wrote before",
                    cell=cell, launch=number, path=path, earlier=earlier,
                )
            )  # fmt: skip
    return make_finding(
        problems,
        "{cell}: none of its {launches:plural launch} was seen to go on from an earlier one{copies}",
            cell=cell, launches=len(launches),
            copies=", each in a copy of the folder" if all(one.is_apart for one in launches) else "",
    )  # fmt: skip


def _list_gone_on_from(audit: Audit, launched: Launched) -> list[tuple[str, str]]:
    """Return (path, name of the earlier launch's cell) of checkpoints that one of another launch has written."""
    loaded = {line["path"] for rank in launched.ranks for line in rank.lines.get("read", [])}
    found = []
    for earlier in launched.beside[: next((at for at, one in enumerate(launched.beside) if one is launched), 0)]:
        written = {
            line["path"] for rank in earlier.ranks for line in rank.lines.get("open", []) if line["mode"] in "wx"
        }
        # What is inside a copy of the folder is another file in every launch.
        shared = {
            path for path in loaded & written if not (launched.is_apart and path.startswith(f"{audit.request.folder}/"))
        }
        found += [(path, earlier.cell) for path in sorted(shared)]
    return found
