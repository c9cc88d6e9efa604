"""The report of an audit: the blocks and renderers of a comparison's, with what was found of a stranger's script."""

from collections.abc import Iterator, Sequence
from typing import Literal

from tasks.auditing.checks import find_remedy, list_faults
from tasks.auditing.evidence import NOT_OBSERVABLE
from tasks.auditing.findings import CLASSES
from tasks.auditing.launched import Audit
from tasks.auditing.rank_record import Fields
from tasks.auditing.speed import Speed
from tasks.auditing.split import find_exposed_seconds, split_device_steps, split_steps, sum_other_work
from tasks.process import wording
from tasks.records.gate import Gate, Standing
from tasks.reporting.blocks import (
    Answers,
    Block,
    Document,
    Facts,
    Fold,
    Items,
    KeyFigures,
    PageSection,
    Table,
    Text,
    tabulate,
)

_UNOBSERVED = f"– {NOT_OBSERVABLE}"
_WORDS = {
    "data": "waiting for data", "forward": "forward", "backward": "backward",
    "exchange": "exchange asked for by the script", "optimizer": "optimizer", "logging": "log lines",
    "script": "the script itself, between those", "checkpoint": "checkpoints", "evaluation": "evaluation",
    "network": "after connecting to the network", "subprocess": "after starting another process",
    "observer": "the observer",
}  # fmt: skip


def make_document(
    audit: Audit,
    gates: Sequence[Gate],
    speeds: Sequence[Speed],
    standings: dict[str, Standing],
) -> Document:
    """Return the report."""
    verdict = tell_verdict(audit, gates, speeds, standings)
    sections = [
        PageSection("findings", "Is it right, and are the cells alike?", list(_make_findings(audit, gates))),
        PageSection("measured", "What was observed", list(_make_observed(audit)), is_folded=True),
    ]
    answers = [
        ("Is it right?", _tell_faults(gates, "wrong training") or "nothing wrong was seen", "findings"),
        ("Are the cells alike?", _tell_faults(gates, "unlike cells") or "no difference was seen", "findings"),
    ]
    if audit.request.compares_speed:
        sections[1:1] = [
            PageSection("speed", "How much faster?", list(_make_speed(audit, speeds, standings))),
            PageSection("split", "Why not more?", list(_make_split(audit))),
        ]
        answers += [
            ("How much faster?", _tell_speed(audit, gates, speeds, standings), "speed"),
            ("Why not more?", _tell_largest(audit), "split"),
        ]
    return Document(
        title=f"Audit of {audit.request.told}",
        tab="what this script does",
        summary=verdict,
        lead=[
            Text(verdict, role=_choose_role(audit, standings)),
            *([KeyFigures(list(_list_figures(speeds, standings)))] if speeds else []),
            Answers(answers),
        ],
        sections=sections,
        end=[
            Text(
                "An audit sees from outside. What it could not see is called not observable and is no pass. What a "
                "step does was looked at in every launch, all else in the first one of each cell. A wrong training and "
                "unlike cells withhold a speedup; hygiene is said, and leaves it what it is of the script as it stands."
            )
        ],
    )


def tell_verdict(audit: Audit, gates: Sequence[Gate], speeds: Sequence[Speed], standings: dict[str, Standing]) -> str:
    """Return the first sentences of the report, which are also what is printed: the gravest finding first."""
    faults = list_faults(gates)
    if faults:
        more = f" {wording.format_plural(len(faults) - 1, 'more finding')} below." if len(faults) > 1 else ""
        told = f"{faults[0].sentence}.{more}"
    else:
        asked = [gate for gate in gates if gate.findings]
        unseen = sum(gate.verdict == "not checked" for gate in asked)
        open_ones = f"{wording.format_plural(unseen, 'question')} of {len(asked)} not observable"
        told = f"Nothing wrong was seen; {open_ones if unseen else f'all {len(asked)} questions were answered'}."
    return f"{told} {_tell_speed(audit, gates, speeds, standings)}" if audit.request.compares_speed else told


def _choose_role(audit: Audit, standings: dict[str, Standing]) -> Literal["answer", "unresolved", "refusal"]:
    states = {standings[cell].state for cell in audit.request.cells}
    return "refusal" if "withheld" in states else "unresolved" if "unproven" in states else "answer"


def _tell_faults(gates: Sequence[Gate], kind: str) -> str:
    return "; ".join(dict.fromkeys(one.sentence for one in list_faults(gates, [kind])))


def _tell_speed(audit: Audit, gates: Sequence[Gate], speeds: Sequence[Speed], standings: dict[str, Standing]) -> str:
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
    beside = list(dict.fromkeys(one.sentence for one in list_faults(gates, ["hygiene"])))
    as_it_is = f" This is the script as it stands, and no figure of GPU scaling: {'; '.join(beside)}." if beside else ""
    return f"{'; '.join(told)}.{as_it_is}"


def _tell_as(audit: Audit, figure: str) -> str:
    return f"has {figure} the throughput (weak scaling)" if audit.request.is_weak else f"is {figure} as fast"


def _format_ratio(speed: Speed) -> str:
    assert speed.speedup is not None
    ratio = speed.speedup
    return wording.format_ratio_with_interval(ratio) if speed.has_interval else wording.format_ratio(ratio.value)


def _tell_largest(audit: Audit) -> str:
    cell = list(audit.request.cells)[-1]
    split = split_steps(audit.first(cell))
    if not split:
        return "not observable: too few steps"
    kind = max(split, key=lambda one: split[one])
    return f"{cell}: {wording.format_percent(split[kind] / sum(split.values()))} of a step is {_WORDS[kind]}"


def _list_figures(speeds: Sequence[Speed], standings: dict[str, Standing]) -> Iterator[tuple[str, str, str]]:
    for speed in speeds:
        if speed.speedup is not None:
            value = (
                wording.WITHHELD
                if standings[speed.cell].state == "withheld"
                else wording.format_ratio(speed.speedup.value)
            )
            yield value, f"speedup of {speed.cell}", standings[speed.cell].state
        yield wording.format_duration(speed.step_seconds), f"per step, {speed.cell}", f"{speed.num_steps:,} steps timed"


def _make_findings(audit: Audit, gates: Sequence[Gate]) -> Iterator[Block]:
    for fault in list_faults(gates, CLASSES):
        one = fault.found
        corrected = [f"What it does to the claim: {one.true_figure}."] if one.true_figure else []
        yield Fold(
            f"{fault.sentence} ({fault.kind})",
            [Items([f"{one.compared}.", *corrected, f"To mend it: {one.remedy or find_remedy(fault.question.NAME)}."])],
            is_open=True,
        )
    cells = list(audit.request.cells)
    rows = [[gate.name, *(_mark(gate, cell) for cell in cells), gate.question] for gate in gates]
    yield Table(
        "Each question, cell by cell",
        ["Question", *cells, "What it asks"],
        rows,
        num_prose=1,
        words=dict.fromkeys(cells, "Cell"),
    )
    told = [
        (f"{gate.name}, {one.cell}", one.compared) for gate in gates for one in gate.findings if one.verdict != "failed"
    ]
    yield Fold("What was seen of each", [Facts(told)])


def _mark(gate: Gate, cell: str) -> str:
    found = gate.find_cell_finding(cell)
    if found is None:
        return wording.NOTHING
    return _UNOBSERVED if found.verdict == "not checked" else wording.MARKS[found.verdict]


def _make_speed(audit: Audit, speeds: Sequence[Speed], standings: dict[str, Standing]) -> Iterator[Block]:
    yield Text(
        "Steps as the script itself makes them, from the end of one to the end of the next, by the slowest rank; "
        "without the first tenth, and without checkpoints, evaluation and uploads between them (but for checkpoints, "
        "what most steps have is a part of them). "
        f"{wording.format_plural(audit.request.num_launches, 'launch')} of each cell, in turns."
    )
    yield tabulate(
        "Speed of each cell",
        [
            ("Cell", lambda speed: speed.cell),
            ("Seconds per step", lambda speed: wording.format_duration(speed.step_seconds)),
            (
                "Samples per second",
                lambda speed: wording.format_optional(speed.samples_per_second, wording.format_three_digits),
            ),
            ("Speedup", lambda speed: _tell_ratio(speed, standings)),
            ("Standing", lambda speed: standings[speed.cell].state),
        ],
        speeds,
    )  # fmt: skip
    for speed in speeds:
        if speed.expected and standings[speed.cell].state != "withheld":
            told = ", ".join(f"{wording.format_ratio(value)} on {number}" for number, value in speed.expected.items())
            yield Text(
                f"If the part of a step that {speed.cell} did not make shorter stays as long as it is (Karp and "
                f"Flatt), it would be {told}. That is arithmetic and no measurement: links and data get slower with "
                "more ranks."
            )
        if speed.speedup is not None and standings[speed.cell].reason:
            yield Text(f"{speed.cell} is {standings[speed.cell].state}: {standings[speed.cell].reason}.", role="notice")


def _tell_ratio(speed: Speed, standings: dict[str, Standing]) -> str:
    if speed.speedup is None:
        return wording.BASELINE
    return wording.WITHHELD if standings[speed.cell].state == "withheld" else _format_ratio(speed)


def _make_split(audit: Audit) -> Iterator[Block]:
    cells = list(audit.request.cells)
    if audit.device != "cpu":
        of_device = {cell: split_device_steps(audit.first(cell)) for cell in cells}
        if any(of_device.values()):
            yield _tabulate_split("Where the GPU's time goes, mean over ranks and steps", of_device)
            yield Text(
                "By events on the stream that the script computes on. Between the parts it copies, computes a loss, or "
                "has nothing to do; the next table, which is the host's, says what is waited for meanwhile."
            )
        yield Text(
            "The following split is that of the host: a GPU works on while the host goes on, and what waits for it "
            "last is charged for it.", role="notice",
        )  # fmt: skip
    yield _tabulate_split(
        "Where a step goes, mean over ranks and steps", {cell: split_steps(audit.first(cell)) for cell in cells}
    )
    for cell in cells:
        exposed = find_exposed_seconds(audit.first(cell))
        if exposed is not None:
            yield Text(
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
        yield Table("What is no step, in the whole run", ["Kind", *cells], rows, words=dict.fromkeys(cells, "Cell"))


def _tabulate_split(title: str, splits: dict[str, dict[str, float]]) -> Table:
    kinds = [kind for kind in _WORDS if any(split.get(kind) for split in splits.values())]
    rows = [[_WORDS[kind], *(_tell_part(split, kind) for split in splits.values())] for kind in kinds]
    return Table(title, ["Part of a step", *splits], rows, words=dict.fromkeys(splits, "Cell"))


def _tell_part(split: dict[str, float], kind: str) -> str:
    whole = sum(split.values())
    return (
        f"{wording.format_duration(split.get(kind, 0.0))} ({wording.format_percent(split.get(kind, 0.0) / whole)})"
        if whole
        else wording.NOT_AVAILABLE
    )


def _make_observed(audit: Audit) -> Iterator[Block]:
    for cell in audit.request.cells:
        launched = audit.first(cell)
        rank = launched.ranks[0]
        first = rank.steps[0] if rank.steps else {}
        micro = first["micros"][0] if first else {}
        facts = [
            ("ended", launched.ending.splitlines()[0] if launched.ending else f"exit code {launched.exit_code}"),
            ("steps", wording.format_count(launched.num_steps)),
            ("output", str(launched.folder / "logs")),
            (
                "Python and torch",
                f"{(rank.start or {}).get('python', '')}, {(rank.first('torch') or {}).get('version', '')}",
            ),
            ("model", _tell_model(micro)),
            ("trainable parameters", wording.format_count(int(first.get("num_parameters", 0)))),
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
        yield Fold(cell, [Facts([(name, wording.replace_unprintable(value)) for name, value in facts if value])])


def _tell_model(micro: Fields) -> str:
    name, wrapper = micro.get("computed") or micro.get("model", ""), micro.get("wrapper", "")
    return f"{name} in {wrapper}" if wrapper else str(name)
