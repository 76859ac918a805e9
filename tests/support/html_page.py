"""A report's page as tests look at it."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link"}

Attributes = dict[str, "str | None"]


class Page(HTMLParser):
    """Checks nesting and collects what tests ask for.

    Attributes:
        tags: (name, attributes) of every element.
        words: All texts between tags.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._open: list[str] = []
        self.tags: list[tuple[str, Attributes]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag} has an attribute twice"
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[Attributes]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def text(self) -> str:
        return "".join(self.words)
