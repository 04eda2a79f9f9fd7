"""The HTML report: one page that needs nothing else, escapes everything, and is the same twice."""

from __future__ import annotations

import dataclasses
import html.parser
import re
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from mobius.errors import ReportError
from mobius.html_report import html_report, write_html_report
from mobius.layer_graph import Layer, LayerGraph, LayerNode
from mobius.package import ModelPackage
from mobius.report import LeftOut, OpDelta, OptimizationReport, StageRecord
from mobius.stage import Phase
from mobius_ir_rules.match_log import Refusal

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(html.parser.HTMLParser):
    """A parsed page: tags balanced, rows of tables and items of lists as text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self.open):
            self.texts[tag][-1] += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def row(self, *start: str) -> list[str]:
        """Return the one row that starts with these cells."""
        (row,) = [row for row in self.rows if row[: len(start)] == list(start)]
        return row


REFUSALS = tuple(
    Refusal("FuseGQA", f"layers.{i}/attn", "Attention", f"The node 'layers.{i}/mask' is no mask.")
    for i in range(3)
)


def report(**changes: object) -> OptimizationReport:
    cleanup = StageRecord(Phase.CLEANUP, "Cleanup", None, (OpDelta("Identity", -2),), 12, 10)
    fusion = StageRecord(
        Phase.FUSION,
        "GQAFusion",
        2,
        (OpDelta("com.microsoft::GroupQueryAttention", 2), OpDelta("Attention", -2)),
        10,
        10,
        REFUSALS,
        seconds=1.5,
    )
    before = LayerGraph(
        Layer("layers", 1),
        (
            LayerNode("layers.1/q", "MatMul", (), ("x",), ()),
            LayerNode("layers.1/attn", "Attention", (0,), ("mask",), ("present.1",)),
        ),
    )
    fused = LayerNode("layers.1/attn", "com.microsoft::GroupQueryAttention", (0,), (), ())
    after = LayerGraph(Layer("layers", 1), (before.nodes[0], fused))
    made = OptimizationReport(
        "cuda",
        ir.DataType.FLOAT16,
        "decoder",
        (cleanup, fusion),
        operators_before=(("Attention", 5), ("Identity", 2), ("MatMul", 5)),
        layer_before=before,
        layer_after=after,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_contents() -> None:
    page = Page(html_report({"model": report()}, title="org/name for cuda"))
    assert page.texts["title"][0] == page.texts["h1"][0] == "org/name for cuda"
    assert page.texts["h2"] == ["model"]
    assert page.texts["dd"] == ["cuda", "f16", "decoder", "12 → 10", "2", "3"]
    assert page.row("1 Cleanup") == [
        "1 Cleanup",
        "Cleanup",
        "–",
        "–",
        "−2",
        "10",
        "–",
        "−2\xa0Identity",
    ]
    assert page.row("2 Fusion")[1:7] == ["GQAFusion", "2", "+2", "−2", "10", "3"]
    assert page.row("Attention") == ["Attention", "5", "", "3", "", "−2"]
    assert page.row("com.microsoft::GroupQueryAttention")[1:] == ["0", "", "2", "", "+2"]
    assert page.row("MatMul")[-1] == "–"


def test_stages_that_did_not_run() -> None:
    without = Page(html_report({"model": report()}, title="t"))
    assert "Stages that did not run" not in without.texts["h3"]
    reason = "It needs <a decoder>."
    page = Page(
        html_report({"m": report(left_out=(LeftOut(Phase.FUSION, "PackQKV", reason),))}, title="t")
    )
    assert "Stages that did not run" in page.texts["h3"]
    assert page.rows[-1] == ["2 Fusion", "PackQKV", reason]


def test_bars_are_as_long_as_the_counts() -> None:
    page = Page(html_report({"model": report()}, title="t"))
    widths = [
        attributes["style"]
        for tag, attributes in page.tags
        if tag == "span" and "style" in attributes
    ]
    # Attention 5 -> 3, MatMul 5 -> 5, GroupQueryAttention 0 -> 2, Identity 2 -> 0
    expected = ["100.0", "60.0", "100.0", "100.0", "0.0", "40.0", "40.0", "0.0"]
    assert sorted(map(str, widths)) == sorted(f"width:{width}%" for width in expected)


def test_refusals_are_grouped_by_reason_with_all_nodes() -> None:
    page = Page(html_report({"model": report()}, title="t"))
    (summary,) = page.texts["summary"]
    assert summary == "3 × Attention The node 'layers.0/mask' is no mask.FuseGQA"
    assert page.texts["li"] == [f"layers.{i}/attn" for i in range(3)]


def test_picture_has_a_box_a_node_and_marks_what_changed() -> None:
    page = Page(html_report({"model": report()}, title="t"))
    assert page.texts["figcaption"] == ["Before: 2 nodes", "After: 2 nodes"]
    styles = [attributes.get("class") for tag, attributes in page.tags if tag == "g"]
    assert styles == ["op", "marked", "value", "value", "value", "op", "marked", "value"]
    assert page.texts["text"][:5] == ["MatMul", "Attention", "x", "mask", "present.1"]
    assert page.texts["text"][5:7] == ["MatMul", "GroupQueryAttention"]
    edges = [attributes for tag, attributes in page.tags if tag == "path"]
    assert len(edges) == 4 + 2


def test_a_huge_layer_is_not_drawn() -> None:
    nodes = tuple(LayerNode(str(i), "Add", (), (), ()) for i in range(500))
    huge = LayerGraph(Layer("layers", 1), nodes)
    text = html_report({"model": report(layer_before=huge)}, title="t")
    assert "It has 500 nodes" in text
    assert "<svg" not in text


def test_without_layers_there_is_no_picture() -> None:
    assert "<svg" not in html_report({"model": report(layer_before=None)}, title="t")


def test_needs_nothing_else() -> None:
    text = html_report({"model": report()}, title="t")
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    assert not [a for _, attributes in page.tags for a in ("src", "href") if a in attributes]
    assert not re.search(r"url\(|@import|https?:", text)


def test_everything_is_escaped() -> None:
    evil = "<script>alert('&\"')</script>"
    node = LayerNode(evil, evil, (), (evil,), (evil,))
    graph = LayerGraph(Layer(evil, 1), (node,))
    stage = StageRecord(Phase.FUSION, evil, 1, (OpDelta(evil, 1),), 1, 2, (Refusal(*[evil] * 4),))
    bad = report(
        ep=evil,
        role=evil,
        stages=(stage,),
        warnings=(evil,),
        operators_before=((evil, 1),),
        layer_before=graph,
        layer_after=graph,
    )
    text = html_report({evil: bad}, title=evil)
    assert "<script" not in text
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert page.texts["h1"] == [evil]
    assert page.texts["li"] == [evil]
    assert page.texts["title"] == [evil, *[f"{evil}\n{evil}", evil, evil] * 2]
    assert evil in page.texts["p"]


def test_equal_reports_give_equal_pages() -> None:
    slower = tuple(dataclasses.replace(stage, seconds=9.0) for stage in report().stages)
    first = html_report({"model": report()}, title="t")
    assert first == html_report({"model": report(stages=slower)}, title="t")


def test_several_graphs_and_none() -> None:
    page = Page(html_report({"a": report(), "b": report()}, title="t"))
    assert page.texts["h2"] == ["a", "b"]
    assert "No graph was optimised." in Page(html_report({}, title="t")).texts["p"]


def test_report_of_a_real_decoder(decoder: Callable[..., ModelPackage]) -> None:
    package = decoder(weights=False, execution_provider="cpu")
    page = Page(html_report(package.reports, title="t"))
    assert page.row("com.microsoft::GroupQueryAttention")[1:] == ["0", "", "2", "", "+2"]
    assert page.texts["h3"][-1] == "Layer model.layers.0"
    assert "GroupQueryAttention" in page.texts["text"]
    before, after = page.texts["figcaption"]
    assert int(re.findall(r"\d+", before)[0]) > int(re.findall(r"\d+", after)[0]) > 5


def test_writing_replaces_a_page_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html_report(path, {}, title="old")
    write_html_report(path, {"model": report()}, title="new")
    assert path.read_text("utf-8") == html_report({"model": report()}, title="new")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.onnx", "no name of an HTML page"),
        ("no/where/page.html", "does not exist"),
        ("folder.html", "is a folder"),
    ],
)
def test_a_path_that_cannot_be_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "model.onnx").write_text("precious")
    with pytest.raises(ReportError, match=message):
        write_html_report(tmp_path / name, {}, title="t")
    assert (tmp_path / "model.onnx").read_text() == "precious"
