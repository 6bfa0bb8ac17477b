"""The console that every command prints to: whatever text it is given, it shows it plainly.

Messages of verdicts, output of cells, names of files and models hold what an agent chose to write.
They are made plain here, where all of them pass, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Span, Text

from bat_env.plain import visible


class Terminal(Console):
    """A rich console whose text holds no signs that act or hide (:func:`~bat_env.plain.visible`).

    Styles, tables and bars are the console's own and stay as they are.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object; every text in it passes here, however deep it lies."""
        if isinstance(renderable, Text):
            renderable = plain_text(renderable)
        elif isinstance(renderable, str):
            renderable = visible(renderable)
        return super().render(renderable, options)


def plain_text(text: Text) -> Text:
    """``text`` made plain, its styles in their places."""
    if visible(text.plain) == text.plain:
        return text
    shown = [visible(sign) for sign in text.plain]
    starts = [0, *accumulate(map(len, shown))]
    made = text.blank_copy("".join(shown))
    last = len(starts) - 1
    made.spans = [
        Span(starts[min(span.start, last)], starts[min(span.end, last)], span.style)
        for span in text.spans
    ]
    return made
