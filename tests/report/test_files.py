"""Tables and figures as files: read back they say what the section said, whatever letters it held."""

import csv
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fedbasis.report import write_files, write_report
from fedbasis.report.chapter import Chapter, ReportFigure
from fedbasis.report.figures import Line, curves
from fedbasis.report.svg import INK, NAMESPACE, Sheet, drawn, style
from fedbasis.report.tables import NOTHING, Cell, Grid
from fedbasis.studies import drawing
from helpers.report_runs import FEDAVG, make_run
from pflbed import InputError

NASTY = '50 % of $x_1$ & {y} | "z", <b>\\#~^'
GRID = Grid(
    "A caption | with 100 %",
    [("size S", 2), ("size M", 1)],
    ["Last", "|Δ|", "Last"],
    [
        (Cell(NASTY), [Cell("72.5 ± 0.4", 0.725, best=True), Cell("1.0"), Cell(NOTHING)]),
        (Cell("FedBasis (α only)"), [Cell("70.0", 0.7), Cell("0.5"), Cell("71.0", best=True)]),
    ],
    "method",
)
UNESCAPED = {r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textless{}": "<",
             r"\textgreater{}": ">", "$|$": "|", r"$\Delta$": "Δ", r"$\alpha$": "α", r"$\pm$": "±",
             "--": "–"}  # fmt: skip


@pytest.fixture(scope="module")
def svg() -> str:
    with style():
        return drawn(curves([Line([1, 2], [1.0, 2.0])], "round", "loss"))


def plain(text: str) -> str:
    """Undo what LaTeX needs, in one pass."""
    names = "|".join(map(re.escape, UNESCAPED))
    return re.sub(rf"{names}|\\([{{}}$&#%_])", lambda found: found[1] or UNESCAPED[found[0]], text)


def test_every_format_says_the_same(tmp_path: Path, svg: str) -> None:
    section = Chapter("new-clients", "Title", tables=[GRID], figures=[ReportFigure("curve", "A curve", svg)])
    written = write_files([section], tmp_path)
    names = ["figures/curve.svg", *(f"tables/new-clients.{ending}" for ending in ("csv", "md", "tex"))]
    assert sorted(str(path.relative_to(tmp_path)) for path in written) == names
    with (tmp_path / names[1]).open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["method", "S Last", "S Last deviation", "S |Δ|", "M Last"],
            [NASTY, "72.5", "0.4", "1.0", ""],
            ["FedBasis (α only)", "70.0", "", "0.5", "71.0"],
        ]
    lines = (tmp_path / names[2]).read_text(encoding="utf-8").splitlines()
    cells = [
        [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]
    ]
    assert cells[0] == ["method", "S Last", "S |Δ|", "M Last"]
    assert cells[1] == ["---", "---:", "---:", "---:"]
    assert cells[2:] == [[NASTY, "**72.5 ± 0.4**", "1.0", NOTHING], ["FedBasis (α only)", "70.0", "0.5", "**71.0**"]]
    lines = (tmp_path / names[3]).read_text(encoding="utf-8").splitlines()
    rows = [[plain(cell.strip()) for cell in re.split(r"(?<!\\)&", line.removesuffix(r"\\"))] for line in lines[6:8]]
    assert rows[0] == [NASTY, r"\textbf{72.5 ± 0.4}", "1.0", NOTHING]
    assert rows[1] == ["FedBasis (α only)", "70.0", "0.5", r"\textbf{71.0}"]
    assert lines[3] == r" & \multicolumn{2}{c}{size S} & \multicolumn{1}{c}{size M} \\"
    assert lines[1] == r"\begin{tabular}{lrrr}"


def test_several_tables_are_numbered_and_the_same_bytes_come_out(tmp_path: Path) -> None:
    section = Chapter("all", "Title", tables=[GRID, GRID])
    once = {path.name: path.read_bytes() for path in write_files([section], tmp_path / "one")}
    again = {path.name: path.read_bytes() for path in write_files([section], tmp_path / "two")}
    assert once == again
    assert sorted(once) == [f"all-{number}.{ending}" for number in (1, 2) for ending in ("csv", "md", "tex")]


def test_curves_come_with_their_numbers(tmp_path: Path) -> None:
    named = {"FedAvg, S": ((1.0, 2.0), (50.0, 100 / 3)), "FedBasis": ((1.0,), (71.25,))}
    section = Chapter(
        "rates", "Title", figures=[drawing.curves("rates-1", "A caption", named, "epoch", "accuracy (%)")]
    )
    written = {str(path.relative_to(tmp_path)): path for path in write_files([section], tmp_path)}
    assert sorted(written) == ["figures/rates-1.csv", "figures/rates-1.svg"]
    with written["figures/rates-1.csv"].open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [
            ["curve", "epoch", "accuracy (%)"],
            ["FedAvg, S", "1", "50"],
            ["FedAvg, S", "2", "33.333"],
            ["FedBasis", "1", "71.25"],
        ]


def test_a_figure_stands_alone(tmp_path: Path, svg: str) -> None:
    inline = str(Sheet().place(svg, "for a page"))
    for name, text in (("raw", svg), ("inline", inline)):
        (path,) = write_files([Chapter("a", "A", figures=[ReportFigure(name, "", text)])], tmp_path)
        root = ElementTree.parse(path).getroot()
        assert root.tag == f"{{{NAMESPACE}}}svg"
        assert (root.get("width", ""), root.get("color")) == (f"{root.get('viewBox', '').split()[2]}pt", "#1c2128")
        assert INK not in path.read_text(encoding="utf-8")
        ids = [e.get("id") for e in root.iter() if e.get("id")]
        used = re.findall(r'(?:url\(|href=")#([^)"]+)', path.read_text(encoding="utf-8"))
        assert used
        assert set(used) <= set(ids)


def test_names_must_be_names_and_differ(tmp_path: Path, svg: str) -> None:
    for bad in ("../up", "a/b", "", "a b"):
        with pytest.raises(InputError, match="needs a name of its own"):
            write_files([Chapter(bad, "A", tables=[GRID])], tmp_path / "out")
    with pytest.raises(InputError, match="twice"):
        write_files([Chapter("a", "A", tables=[GRID]), Chapter("a", "B", tables=[GRID])], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sections_open_the_page(tmp_path: Path, svg: str) -> None:
    figures = [ReportFigure("one", "First <caption>", svg), ReportFigure("two", "Second", str(Sheet().place(svg, "x")))]
    section = Chapter("s", "What <b>it</b> shows", ["A & B."], [GRID], figures)
    write_report([make_run(tmp_path / "fedavg-a", "fedavg", FEDAVG)], tmp_path / "page.html", [section])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.index("What &lt;b&gt;it&lt;/b&gt; shows</h2>") < text.index('<h2 id="results"')
    assert all(part in text for part in ("<p>A &amp; B.</p>", "First &lt;caption&gt;", "<b>72.5 ± 0.4</b>"))
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
