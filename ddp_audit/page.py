"""The report of an audit: what was found, how fast the script is, and where its time goes."""

from collections.abc import Iterator, Sequence

from ddp_audit.checks import Answers, Standing, list_faults
from ddp_audit.document import Block, Document, Fold, Items, Section, Table
from ddp_audit.evidence import NOT_OBSERVABLE
from ddp_audit.findings import CLASSES
from ddp_audit.launched import Audit
from ddp_audit.process import wording
from ddp_audit.rank_record import Fields
from ddp_audit.speed import Speed, find_exposed_seconds, split_device_steps, split_steps, sum_other_work

_WITHHELD = "withheld"
_MARKS = {"passed": "✓ passed", "failed": "✗ failed", "not checked": "– not observable", None: "–"}
"""Verdict of a question -> how a table shows it."""
_WORDS = {
    "data": "waiting for data", "forward": "forward", "backward": "backward",
    "exchange": "exchange asked for by the script", "optimizer": "optimizer", "logging": "log lines",
    "script": "the script itself, between those", "checkpoint": "checkpoints", "evaluation": "evaluation",
    "network": "after connecting to the network", "subprocess": "after starting another process",
    "observer": "the observer",
}  # fmt: skip


def make_document(
    audit: Audit, answers: Sequence[Answers], speeds: Sequence[Speed], standings: dict[str, Standing]
) -> Document:
    """Return the report."""
    sections = [
        Section("Is it right, and are the cells alike?", list(_make_findings(audit, answers))),
        Section("What was observed", [_make_observed(audit, cell) for cell in audit.request.cells]),
    ]
    if audit.request.compares_speed:
        sections[1:1] = [
            Section("How much faster?", list(_make_speed(audit, speeds, standings))),
            Section("Why not more?", list(_make_split(audit))),
        ]
    end = (
        "An audit sees from outside. What it could not see is called not observable and is no pass. What a step does "
        "was looked at in every launch, all else in the first one of each cell. A wrong training and unlike cells "
        "withhold a speedup; hygiene is said, and leaves it what it is of the script as it stands."
    )
    return Document(f"Audit of {audit.request.told}", tell_verdict(audit, answers, speeds, standings), [*sections, end])


def tell_verdict(
    audit: Audit, answers: Sequence[Answers], speeds: Sequence[Speed], standings: dict[str, Standing]
) -> str:
    """Return the first sentences of the report, which are also what is printed: the gravest finding first."""
    faults = list_faults(answers)
    if faults:
        more = f" {wording.format_plural(len(faults) - 1, 'more finding')} below." if len(faults) > 1 else ""
        told = f"{faults[0].sentence}.{more}"
    else:
        asked = [gate for gate in answers if gate.findings]
        unseen = sum(gate.verdict == "not checked" for gate in asked)
        open_ones = f"{wording.format_plural(unseen, 'question')} of {len(asked)} not observable"
        told = f"Nothing wrong was seen; {open_ones if unseen else f'all {len(asked)} questions were answered'}."
    return f"{told} {_tell_speed(audit, answers, speeds, standings)}" if audit.request.compares_speed else told


def _tell_speed(
    audit: Audit, answers: Sequence[Answers], speeds: Sequence[Speed], standings: dict[str, Standing]
) -> str:
    told = []
    for speed in speeds:
        if speed.speedup is None:
            continue
        state = standings[speed.cell].state
        if state == "withheld":
            told.append(f"{speed.cell}: speedup withheld")
            continue
        figure = f"{speed.cell} {_tell_as(audit, _format_ratio(speed))}"
        told.append(f"{figure}{', no interval' * (not speed.has_interval)}, {state}")
    if not told:
        return "No speedup: too few steps were seen."
    beside = list(dict.fromkeys(one.sentence for one in list_faults(answers, ["hygiene"])))
    as_it_is = f" This is the script as it stands, and no figure of GPU scaling: {'; '.join(beside)}." if beside else ""
    return f"{'; '.join(told)}.{as_it_is}"


def _tell_as(audit: Audit, figure: str) -> str:
    return f"has {figure} the throughput (weak scaling)" if audit.request.is_weak else f"is {figure} as fast"


def _format_ratio(speed: Speed) -> str:
    assert speed.speedup is not None
    value, low, high = (wording.format_ratio(one) for one in vars(speed.speedup).values())
    return f"{value} ({low[:-1]} to {high[:-1]})" if speed.has_interval else value


def _make_findings(audit: Audit, answers: Sequence[Answers]) -> Iterator[Block]:
    for fault in list_faults(answers, CLASSES):
        one = fault.found
        corrected = [f"What it does to the claim: {one.true_figure}."] if one.true_figure else []
        yield Fold(
            f"{fault.sentence} ({fault.kind})",
            [Items([f"{one.compared}.", *corrected, f"To mend it: {one.remedy or fault.question.REMEDY}."])],
            is_open=True,
        )
    cells = list(audit.request.cells)
    rows = [[one.name, *(_mark(one, cell) for cell in cells), one.question] for one in answers]
    yield Table("Each question, cell by cell", ["Question", *cells, "What it asks"], rows)
    told = [
        f"{one.name}, {cell}: {found.compared}"
        for one in answers
        for cell, found in one.findings.items()
        if found.verdict != "failed"
    ]
    yield Fold("What was seen of each", [Items(told)])


def _mark(answers: Answers, cell: str) -> str:
    found = answers.findings.get(cell)
    return _MARKS[found.verdict if found else None]


def _make_speed(audit: Audit, speeds: Sequence[Speed], standings: dict[str, Standing]) -> Iterator[Block]:
    yield (
        "Steps as the script itself makes them, from the end of one to the end of the next, by the slowest rank; "
        "without the first tenth, and without checkpoints, evaluation and uploads between them (but for checkpoints, "
        "what most steps have is a part of them). "
        f"{wording.format_plural(audit.request.num_launches, 'launch')} of each cell, in turns."
    )
    rows = [
        [
            speed.cell,
            wording.format_duration(speed.step_seconds),
            wording.format_three_digits(speed.samples_per_second) if speed.samples_per_second else "n/a",
            f"{speed.num_steps:,}",
            _tell_ratio(speed, standings),
            standings[speed.cell].state,
        ]
        for speed in speeds
    ]
    head = ["Cell", "Seconds per step", "Samples per second", "Steps timed", "Speedup", "Standing"]
    yield Table("Speed of each cell", head, rows)
    for speed in speeds:
        if speed.speedup is not None and standings[speed.cell].reason:
            yield f"{speed.cell} is {standings[speed.cell].state}: {standings[speed.cell].reason}."


def _tell_ratio(speed: Speed, standings: dict[str, Standing]) -> str:
    if speed.speedup is None:
        return "baseline"
    return _WITHHELD if standings[speed.cell].state == "withheld" else _format_ratio(speed)


def _make_split(audit: Audit) -> Iterator[Block]:
    cells = list(audit.request.cells)
    if audit.device != "cpu":
        of_device = {cell: split_device_steps(audit.first(cell)) for cell in cells}
        if any(of_device.values()):
            yield _tabulate_split("Where the GPU's time goes, mean over ranks and steps", of_device)
            yield (
                "By events on the stream that the script computes on. Between the parts it copies, computes a loss, or "
                "has nothing to do; the next table, which is the host's, says what is waited for meanwhile."
            )
        yield (
            "The following split is that of the host: a GPU works on while the host goes on, and what waits for it "
            "last is charged for it."
        )
    yield _tabulate_split(
        "Where a step goes, mean over ranks and steps", {cell: split_steps(audit.first(cell)) for cell in cells}
    )
    for cell in cells:
        exposed = find_exposed_seconds(audit.first(cell))
        if exposed is not None:
            yield (
                f"{cell}: by DDP's own clock {wording.format_duration(max(exposed, 0.0))} of a backward's exchange are "
                "beside no computation."
            )
    other = {cell: sum_other_work(audit.first(cell)) for cell in cells}
    rows = [
        [_WORDS[kind], *(wording.format_duration(other[cell].get(kind, 0.0)) for cell in cells)]
        for kind in _WORDS
        if any(other[cell].get(kind) for cell in cells)
    ]
    if rows:
        yield Table("What is no step, in the whole run", ["Kind", *cells], rows)


def _tabulate_split(title: str, splits: dict[str, dict[str, float]]) -> Table:
    kinds = [kind for kind in _WORDS if any(split.get(kind) for split in splits.values())]
    rows = [[_WORDS[kind], *(_tell_part(split, kind) for split in splits.values())] for kind in kinds]
    return Table(title, ["Part of a step", *splits], rows)


def _tell_part(split: dict[str, float], kind: str) -> str:
    whole = sum(split.values())
    return (
        f"{wording.format_duration(split.get(kind, 0.0))} ({wording.format_percent(split.get(kind, 0.0) / whole)})"
        if whole
        else "n/a"
    )


def _make_observed(audit: Audit, cell: str) -> Block:
    launched = audit.first(cell)
    rank = launched.ranks[0]
    first = rank.steps[0] if rank.steps else {}
    micro = first["micros"][0] if first else {}
    facts = [
        ("ended", launched.ending.splitlines()[0] if launched.ending else f"exit code {launched.exit_code}"),
        ("steps", f"{launched.num_steps:,}"),
        ("output", str(launched.folder / "logs")),
        (
            "Python and torch",
            f"{(rank.start or {}).get('python', '')}, {(rank.first('torch') or {}).get('version', '')}",
        ),
        ("model", _tell_model(micro)),
        ("trainable parameters", f"{int(first.get('num_parameters', 0)):,}"),
        ("optimizer", str(first.get("optimizer", ""))),
        ("learning rate of the first step", ", ".join(map(str, first.get("lr", [])))),
        ("precision", str(micro.get("precision", ""))),
        ("attention", str(micro.get("attention", "")) or f"{NOT_OBSERVABLE}"),
        ("micro-batches per step and rank", str(len(first.get("micros", [])))),
        ("shape of the first input", str(micro.get("shape", ""))),
        ("loss of the first micro-batch", str(micro.get("loss_of_model", micro.get("loss", NOT_OBSERVABLE)))),
        ("seed", str(first.get("seed", ""))),
        ("threads of a rank", str(first.get("num_threads", ""))),
        ("backend", str(first.get("backend", "")) or "no process group"),
        ("observed to its end", "yes" if rank.is_whole else "no"),
        ("left running, and ended", ", ".join(launched.left)),
    ]
    return Fold(cell, [Items([f"{name}: {wording.replace_unprintable(value)}" for name, value in facts if value])])


def _tell_model(micro: Fields) -> str:
    name, wrapper = micro.get("computed") or micro.get("model", ""), micro.get("wrapper", "")
    return f"{name} in {wrapper}" if wrapper else str(name)
