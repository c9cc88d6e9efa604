"""The report of an audit, as one page that needs nothing else and as Markdown: what was found, how fast, and why."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ddp_audit.checks import Result, list_faults
from ddp_audit.findings import CLASSES, HYGIENE, NOT_OBSERVABLE
from ddp_audit.process import wording
from ddp_audit.speed import Speed, split_steps, sum_other_work

_SPECIAL = re.compile(r"([\\`*\[\]|~#])")
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse;display:block;overflow-x:auto}th,td{text-align:left;padding:.3rem .8rem;"
    "border-bottom:1px solid #8886;vertical-align:top}.lead{font-size:1.3rem}summary{cursor:pointer;font-weight:600}"
    "details{margin:.8rem 0;padding:.2rem .8rem;border-left:3px solid #8886}"
)


@dataclass(frozen=True)
class Table:
    """A table with a title."""

    title: str
    rows: Sequence[Sequence[str]]
    """The first one is its head."""


@dataclass(frozen=True)
class Section:
    """A part with a heading; one within another is read by whoever opens it."""

    title: str
    blocks: "Sequence[Block]"
    is_open: bool = False


Block = str | list[str] | Table | Section
"""A text is a paragraph, a list of texts a list."""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    lead: str
    """Its first sentences, which stand alone."""
    blocks: Sequence[Block]


def render_html(document: Document) -> str:
    """Return the page; nothing in its texts becomes markup."""
    title, blocks = escape(document.title), "\n".join(_to_html(block, level=0) for block in document.blocks)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{title}</title><style>{_STYLE}</style><main><h1>{title}</h1>"
        f'<p class="lead">{escape(document.lead)}</p>{blocks}</main></html>\n'
    )


def render_markdown(document: Document) -> str:
    """Return the same for a terminal."""
    whole = Section(document.title, [document.lead, *document.blocks])
    return _to_markdown(whole, level=0) + "\n"


def _to_html(block: Block, *, level: int) -> str:
    if isinstance(block, str):
        return f"<p>{escape(block)}</p>"
    if isinstance(block, list):
        return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in block) + "</ul>"
    title = escape(block.title)
    if isinstance(block, Table):
        rows = (f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in block.rows)
        head = next(rows).replace("<td>", '<th scope="col">').replace("</td>", "</th>")
        return f"<table><caption>{title}</caption>{head}{''.join(rows)}</table>"
    inside = "\n".join(_to_html(item, level=level + 1) for item in block.blocks)
    if level:
        return f"<details{' open' * block.is_open}><summary>{title}</summary>{inside}</details>"
    return f"<section><h2>{title}</h2>{inside}</section>"


def _to_markdown(block: Block, *, level: int) -> str:
    if isinstance(block, str):
        return _escape(block)
    if isinstance(block, list):
        return "\n".join(f"- {_escape(item)}" for item in block)
    if isinstance(block, Table):
        head, *rows = (f"| {' | '.join(map(_escape, row))} |" for row in block.rows)
        return "\n".join([f"{_escape(block.title)}:", "", head, "|---" * len(block.rows[0]) + "|", *rows])
    inside = (_to_markdown(item, level=level + 1) for item in block.blocks)
    return "\n\n".join([f"#{'#' * level} {_escape(block.title)}", *inside])


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", escape(" ".join(text.split()), quote=False))


_MARKS = {"passed": "✓ passed", "failed": "✗ failed", "not checked": "– not observable", None: "–"}
"""Outcome of a question -> how a table shows it."""
_WORDS = {
    "data": "waiting for data", "forward": "forward", "backward": "backward",
    "exchange": "exchange asked for by the script", "optimizer": "optimizer",
    "script": "the script itself, between those", "checkpoint": "checkpoints", "evaluation": "evaluation",
    "network": "after connecting to the network", "subprocess": "after starting another process",
    "observer": "the observer",
}  # fmt: skip
_SHOWN = {
    "python", "version", "num_parameters", "optimizer", "lr", "precision", "shape", "seed", "num_threads", "backend",
}  # fmt: skip
"""Fields of the records that the page shows as they are."""
_END = (
    "An audit sees from outside. What it could not see is called not observable and is no pass. What a step does was "
    "looked at in every launch, all else in the first one of each cell. A wrong training and unlike cells withhold a "
    "speedup; hygiene is said, and leaves it what it is of the script as it stands."
)


def make_document(result: Result) -> Document:
    """Return the report."""
    request = result.audit.request
    sections = [Section("Is it right, and are the cells alike?", list(_make_findings(result)))]
    if request.compares_speed:
        sections.append(Section("How much faster?", list(_make_speed(result))))
        sections.append(Section("Why not more?", list(_make_split(result))))
    sections.append(Section("What was observed", [_make_observed(result, cell) for cell in request.cells]))
    return Document(f"Audit of {request.command_line}", format_verdict(result), [*sections, _END])


def format_verdict(result: Result) -> str:
    """Return the first sentences of the report, which are also what is printed: the gravest finding first."""
    if faults := list_faults(result.answers):
        more = f" {wording.format_plural(len(faults) - 1, 'more finding')} below." * (len(faults) > 1)
        text = f"{faults[0].sentence}.{more}"
    else:
        asked = [answer.outcome for answer in result.answers if answer.findings]
        unseen = asked.count("not checked")
        open_ones = f"{wording.format_plural(unseen, 'question')} of {len(asked)} not observable"
        text = f"Nothing wrong was seen; {open_ones if unseen else f'all {len(asked)} questions were answered'}."
    if not result.audit.request.compares_speed:
        return text
    figures = []
    for speed in result.speeds:
        state = result.standings[speed.cell].state
        if speed.speedup is not None:
            ratio, interval = _format_ratio(speed), ", no interval" * (not speed.has_interval)
            is_weak = result.audit.request.is_weak
            figure = f"has {ratio} the throughput (weak scaling)" if is_weak else f"is {ratio} as fast"
            known, withheld = f"{speed.cell} {figure}{interval}, {state}", f"{speed.cell}: speedup withheld"
            figures.append(withheld if state == "withheld" else known)
    if not figures:
        return f"{text} No speedup: too few steps were seen."
    beside = "; ".join(dict.fromkeys(fault.sentence for fault in list_faults(result.answers, [HYGIENE])))
    as_it_is = f" This is the script as it stands, and no figure of GPU scaling: {beside}." * bool(beside)
    return f"{text} {'; '.join(figures)}.{as_it_is}"


def _format_ratio(speed: Speed) -> str:
    assert speed.speedup is not None
    value, low, high = (wording.format_ratio(var) for var in vars(speed.speedup).values())
    return f"{value} ({low[:-1]} to {high[:-1]})" if speed.has_interval else value


def _make_findings(result: Result) -> Iterator[Block]:
    for fault in list_faults(result.answers, CLASSES):
        figure, remedy = fault.finding.true_figure, fault.finding.remedy or fault.question.remedy
        corrected = [f"What it does to the claim: {figure}."] * bool(figure)
        text = [f"{fault.finding.compared}.", *corrected, f"To mend it: {remedy}."]
        yield Section(f"{fault.sentence} ({fault.kind})", [text], is_open=True)
    cells = list(result.audit.request.cells)
    rows, text = [["Question", *cells, "What it asks"]], []
    for answer in result.answers:
        outcomes = {cell: item.outcome for cell, item in answer.findings.items()}
        rows.append([answer.name, *(_MARKS[outcomes.get(cell)] for cell in cells), answer.question])
        seen = {cell: item for cell, item in answer.findings.items() if item.outcome != "failed"}
        text += [f"{answer.name}, {cell}: {item.compared}" for cell, item in seen.items()]
    yield Table("Each question, cell by cell", rows)
    yield Section("What was seen of each", [text])


def _make_speed(result: Result) -> Iterator[Block]:
    yield (
        "Steps as the script itself makes them, from the end of one to the end of the next, by the slowest rank; "
        "without the first tenth, and without checkpoints, evaluation and uploads between them (but for checkpoints, "
        "what most steps have is a part of them). "
        f"{wording.format_plural(result.audit.request.num_launches, 'launch')} of each cell, in turns."
    )
    rows = [["Cell", "Seconds per step", "Samples per second", "Steps timed", "Speedup", "Standing"]]
    reasons = []
    for speed in result.speeds:
        standing, ratio = result.standings[speed.cell], "baseline"
        if speed.speedup is not None:
            ratio = wording.WITHHELD if standing.state == "withheld" else _format_ratio(speed)
            reasons += [f"{speed.cell} is {standing.state}: {standing.reason}."] * bool(standing.reason)
        samples = wording.format_three_digits(speed.samples_per_second) if speed.samples_per_second else "n/a"
        seconds = wording.format_duration(speed.step_seconds)
        rows.append([speed.cell, seconds, samples, f"{speed.num_steps:,}", ratio, standing.state])
    yield Table("Speed of each cell", rows)
    yield from reasons


def _make_split(result: Result) -> Iterator[Block]:
    launches = {cell: result.audit.first(cell) for cell in result.audit.request.cells}
    split = {cell: split_steps(launch) for cell, launch in launches.items()}
    yield _tabulate("Where a step goes by the host's clock, mean over ranks and steps", split)
    other = {cell: sum_other_work(launch) for cell, launch in launches.items()}
    if any(any(item.values()) for item in other.values()):
        yield _tabulate("What is no step, in the whole run", other, has_shares=False)


def _tabulate(title: str, splits: dict[str, dict[str, float]], *, has_shares: bool = True) -> Table:
    def say(split: dict[str, float], kind: str) -> str:
        seconds, whole = split.get(kind, 0.0), sum(split.values())
        share = f" ({wording.format_percent(seconds / whole)})" if has_shares and whole else ""
        return wording.format_duration(seconds) + share if whole else "n/a"

    kinds = [kind for kind in _WORDS if any(split.get(kind) for split in splits.values())]
    rows = [[_WORDS[kind], *(say(split, kind) for split in splits.values())] for kind in kinds]
    return Table(title, [["Part", *splits], *rows])


def _make_observed(result: Result, cell: str) -> Block:
    launched = result.audit.first(cell)
    rank = launched.ranks[0]
    first = rank.steps[0] if rank.steps else {}
    micro = first["micros"][0] if first else {}
    name, wrapper = micro.get("computed") or micro.get("model", ""), micro.get("wrapper", "")
    facts = {
        "ended": launched.ending.splitlines()[0] if launched.ending else f"exit code {launched.exit_code}",
        "steps": f"{launched.num_steps:,}",
        "output": launched.folder / "logs",
        "model": f"{name} in {wrapper}" if wrapper else name,
        "loss of the first micro-batch": micro.get("loss_of_model", micro.get("loss", NOT_OBSERVABLE)),
        "micro-batches per step and rank": len(first.get("micros", [])),
        "observed to its end": "yes" if rank.is_whole else "no",
        "left running, and ended": ", ".join(launched.left),
    }
    for source in (rank.start, rank.first("torch"), first, micro):
        facts |= {key.replace("_", " "): value for key, value in (source or {}).items() if key in _SHOWN}
    text = {name: wording.replace_unprintable(str(value)) for name, value in facts.items()}
    return Section(cell, [[f"{name}: {value}" for name, value in text.items() if value]])
