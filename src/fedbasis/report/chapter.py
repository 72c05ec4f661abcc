"""A part of a report: a title, paragraphs, tables and figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fedbasis.report.tables import Grid


@dataclass(frozen=True)
class ReportFigure:
    """One drawing: a name for its file, a caption, and the svg itself."""

    name: str
    caption: str
    svg: str
    csv: str = ""
    """The numbers that are drawn."""


@dataclass(frozen=True)
class Chapter:
    """One reproduced table or figure of the paper; ``name`` also names its files."""

    name: str
    title: str
    text: Sequence[str] = ()
    """Paragraphs: the setting, and which of the paper's claims hold."""
    tables: Sequence[Grid] = field(default=())
    figures: Sequence[ReportFigure] = field(default=())
