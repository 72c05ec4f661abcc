"""A part of a report that answers one question: a title, tables, figures, and what they say in words."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedbasis.report.tables import Grid


@dataclass(frozen=True)
class ReportFigure:
    """One drawing: a name for its file, a caption, and the svg itself."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Chapter:
    """What one table or figure of the paper became here; ``name`` also names its files."""

    name: str
    title: str
    text: Sequence[str] = ()
    """Paragraphs: the setting, which of the paper's claims hold here and which do not."""
    tables: Sequence[Grid] = field(default=())
    figures: Sequence[ReportFigure] = field(default=())
