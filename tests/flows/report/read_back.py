"""A report as a browser reads it."""

from html.parser import HTMLParser
from pathlib import Path


class Page(HTMLParser):
    """Every element, and the text of the page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    @property
    def loads(self) -> list[str]:
        """Every address that a browser would fetch by itself."""
        found = [
            attrs[name]
            for tag, attrs in self.elements
            for name in ("src", "href", "srcset", "data", "poster")
            if name in attrs and not (tag == "a" and name == "href")
        ]
        return [str(address) for address in found]

    @property
    def figures(self) -> list[str | None]:
        return [attrs.get("id") for tag, attrs in self.elements if tag == "figure"]

    @property
    def sections(self) -> list[str | None]:
        return [attrs.get("id") for tag, attrs in self.elements if tag == "section"]
