"""`html_report`: what optimisation did to each graph, as one page that needs nothing else.

The page has no script, loads nothing, and holds no time: equal reports give equal pages.
"""

from __future__ import annotations

import collections
import os
import secrets
from collections.abc import Iterable, Mapping
from html import escape
from importlib import resources
from pathlib import Path

from mobius.__about__ import __version__
from mobius.dtypes import short_name
from mobius.errors import ReportError
from mobius.layer_graph import LayerGraph
from mobius.layer_svg import MOST_NODES, layer_svg
from mobius.report import LeftOut, OptimizationReport, StageRecord, refusal_groups
from mobius_ir_rules.match_log import Refusal

__all__ = ["check_report_path", "html_report", "write_html_report"]

_PHASES = {"1": "Cleanup", "2": "Fusion", "2b": "Inline", "3": "Lowering", "4": "Fold"}


def html_report(reports: Mapping[str, OptimizationReport], *, title: str) -> str:
    """Return the page.

    Args:
        reports: What was done to each graph, for instance `ModelPackage.reports`.
        title: What was built.
    """
    style = resources.files("mobius").joinpath("html_report.css").read_text(encoding="utf-8")
    sections = "\n".join(_section(key, report) for key, report in reports.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="mobius {escape(__version__)}">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><p>What Mobius {escape(__version__)} changed, and what it left \
alone and why.</p></header>
<main>
{sections or "<p>No graph was optimised.</p>"}
</main>
</body>
</html>
"""


def check_report_path(path: Path) -> None:
    """Refuse a path that a page cannot or should not be written to.

    Raises:
        ReportError: saying what is wrong with it.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise ReportError(f"{path} is no name of an HTML page. Give the report a name in .html.")
    if path.is_dir():
        raise ReportError(f"{path} is a folder. Give the report the name of a file.")
    if not path.parent.is_dir():
        raise ReportError(f"The folder {path.parent} does not exist. Make it, or choose another.")


def write_html_report(path: Path, reports: Mapping[str, OptimizationReport], *, title: str) -> None:
    """Write the page to `path`, completely or not at all; a page that is there is replaced.

    Raises:
        ReportError: if it cannot be written.
    """
    check_report_path(path)
    page = html_report(reports, title=title)
    staged = path.with_name(f".{path.name}.tmp-{secrets.token_hex(4)}")
    try:
        staged.write_text(page, encoding="utf-8", newline="\n")
        os.replace(staged, path)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise ReportError(f"The report cannot be written to {path}: {error}") from error


def _section(key: str, report: OptimizationReport) -> str:
    parts = [
        f"<section><h2>{escape(key)}</h2>",
        _facts(report),
        *(f'<p class="warning">{escape(text)}</p>' for text in report.warnings),
        "<h3>Stages</h3>",
        _stage_table(report.stages),
        "<h3>Operators</h3>",
        _operator_table(report),
        "<h3>Left alone</h3>",
        _refusals(report.refusals),
        _left_out(report.left_out),
        _pictures(report),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _facts(report: OptimizationReport) -> str:
    rewrites = sum(stage.applications or 0 for stage in report.stages)
    facts = {
        "Execution provider": report.ep,
        "dtype": short_name(report.dtype),
        "Role": str(report.role),
        "Nodes": f"{report.nodes_before} → {report.nodes_after}",
        "Rewrites": str(rewrites),
        "Left alone": str(len(report.refusals)),
    }
    cells = "".join(f"<div><dt>{k}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    return f"<dl>{cells}</dl>"


def _stage_table(stages: Iterable[StageRecord]) -> str:
    rows = []
    for stage in stages:
        changes = ", ".join(
            f"{_signed(each.count)}\N{NO-BREAK SPACE}{each.op_type}" for each in stage.deltas
        )
        applied = "–" if stage.applications is None else str(stage.applications)
        quiet = ' class="quiet"' if stage.did_nothing else ""
        rows.append(
            f"<tr{quiet}><td>{escape(stage.phase.value)} {_PHASES[stage.phase.value]}</td>"
            f"<td>{escape(stage.name)}</td><td class='n'>{applied}</td>"
            f"<td class='n'>{_signed(stage.added)}</td><td class='n'>{_signed(-stage.removed)}</td>"
            f"<td class='n'>{stage.nodes_after}</td><td class='n'>{len(stage.refusals) or '–'}</td>"
            f"<td>{escape(changes) or '–'}</td></tr>"
        )
    return (
        '<table class="stages"><thead><tr><th>Phase</th><th>Stage</th><th class="n">Applied</th>'
        '<th class="n">+Nodes</th><th class="n">−Nodes</th><th class="n">Nodes</th>'
        '<th class="n">Left alone</th><th>Net change</th></tr></thead><tbody>'
        + "".join(rows)
        + "</tbody></table>"
    )


def _operator_table(report: OptimizationReport) -> str:
    before, after = dict(report.operators_before), dict(report.operators_after)
    operators = sorted(
        before.keys() | after.keys(),
        key=lambda op: (-max(before.get(op, 0), after.get(op, 0)), op),
    )
    largest = max([*before.values(), *after.values(), 1])
    rows = []
    for op in operators:
        old, new = before.get(op, 0), after.get(op, 0)
        kind = "new" if new > old else "gone" if new < old else "same"
        rows.append(
            f'<tr class="{kind}"><td>{escape(op)}</td>'
            f"<td class='n'>{old}</td><td>{_bar('before', old, largest)}</td>"
            f"<td class='n'>{new}</td><td>{_bar('after', new, largest)}</td>"
            f"<td class='n'>{_signed(new - old)}</td></tr>"
        )
    return (
        '<table class="operators"><thead><tr><th>Operator</th><th class="n" colspan="2">Before'
        '</th><th class="n" colspan="2">After</th><th class="n">Change</th></tr></thead><tbody>'
        + "".join(rows)
        + "</tbody></table>"
    )


def _bar(kind: str, count: int, largest: int) -> str:
    return f'<span class="bar {kind}" style="width:{100 * count / largest:.1f}%"></span>'


def _signed(number: int) -> str:
    if not number:
        return "–"
    return f"+{number}" if number > 0 else f"−{-number}"


def _refusals(refusals: Iterable[Refusal]) -> str:
    groups = refusal_groups(refusals)
    if not groups:
        return "<p>The stages that ran left no candidate as it was.</p>"
    return "\n".join(
        f"<details><summary><b>{len(group.nodes)} × {escape(group.op_type)}</b> "
        f"{escape(group.reason)}<span class='rule'>{escape(group.rule)}</span></summary>"
        f"<ul>{''.join(f'<li>{escape(node)}</li>' for node in group.nodes)}</ul></details>"
        for group in groups
    )


def _left_out(stages: Iterable[LeftOut]) -> str:
    rows = [
        f"<tr><td>{escape(each.phase.value)} {_PHASES[each.phase.value]}</td>"
        f"<td>{escape(each.name)}</td><td>{escape(each.reason)}</td></tr>"
        for each in stages
    ]
    if not rows:
        return ""
    return (
        "<h3>Stages that did not run</h3>"
        '<table class="stages"><thead><tr><th>Phase</th><th>Stage</th><th>Why not</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _pictures(report: OptimizationReport) -> str:
    before, after = report.layer_before, report.layer_after
    if before is None or after is None:
        return ""
    most = max(len(before.nodes), len(after.nodes))
    layer = escape(str(before.layer))
    if most > MOST_NODES:
        return f"<h3>Layer {layer}</h3><p>It has {most} nodes, too many for a picture.</p>"
    old, new = _operators(before), _operators(after)
    pictures = (
        ("before", before, {op for op in old if new[op] < old[op]}),
        ("after", after, {op for op in new if new[op] > old[op]}),
    )
    figures = "".join(
        f'<figure class="{when}"><figcaption>{when.title()}: {len(graph.nodes)} nodes</figcaption>'
        f"{layer_svg(graph, marked, name=f'Layer {before.layer} {when} optimisation')}</figure>"
        for when, graph, marked in pictures
    )
    return (
        f"<h3>Layer {layer}</h3><p>Weights are not drawn. Coloured are the operators that the "
        f'layer loses (before) and gains (after).</p><div class="pictures">{figures}</div>'
    )


def _operators(graph: LayerGraph) -> collections.Counter[str]:
    return collections.Counter(node.op_type for node in graph.nodes)
