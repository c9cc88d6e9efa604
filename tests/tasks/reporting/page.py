"""A reader of HTML that is as strict as the tests need: balanced tags, texts, attributes."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "img", "input", "hr"}


@dataclass
class Element:
    """One start tag."""

    tag: str
    attributes: dict[str, str]


@dataclass
class Page(HTMLParser):
    """What a page consists of; raises AssertionError for a tag that is closed wrongly."""

    source: str
    elements: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._open: list[str] = []
        self.feed(self.source)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> without a start"
        assert self._open[-1] == tag, f"</{tag}> closes <{self._open[-1]}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        """All that is read, white space made single."""
        return " ".join(" ".join(self.texts).split())

    @property
    def told(self) -> str:
        """The same, and before it what is said of each chart to who does not see it."""
        labels = [element.attributes.get("aria-label", "") for element in self.all("div")]
        return f"{' '.join(labels)} {self.text}"

    def all(self, tag: str) -> list[Element]:
        """Return every element of this kind."""
        return [element for element in self.elements if element.tag == tag]
