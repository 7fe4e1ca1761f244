"""A text that would be markup, and what a browser makes of a piece of HTML."""

from html.parser import HTMLParser

MARKUP = "<h1>Title</h1> <script>alert(1)</script> $x^2$ | `code` &amp; **bold** \\(y\\)"


class Page(HTMLParser):
    """Tags and text of a piece of HTML, as a browser reads it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data
