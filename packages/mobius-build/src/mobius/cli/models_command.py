"""`mobius models`: the model types that can be built, and what was verified of each."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mobius.cli.console import DebugOption, JsonOption, reported_errors

if TYPE_CHECKING:
    from rich.table import Table

    from mobius.families import Family

__all__ = ["models"]

_DTYPES = ("f32", "f16", "bf16")


def models(
    model_type: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL_TYPE]", help="Show every measurement of this one."),
    ] = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the model types that can be built, and how close to the reference each was.

    A difference is the largest of any logit in any scenario, relative to the largest logit of the
    reference. A model type without numbers is built, but no one has compared it yet.

    Exit codes: 0 done, 1 an error, 2 wrong usage.
    """
    with reported_errors(debug=debug, json_lines="models" if as_json else None):
        from mobius.families import find_families, known_families
        from mobius.sources import SourceError

        found = known_families() if model_type is None else find_families(model_type)
        if not found:
            raise SourceError(
                "No installed source says what it builds. Install the HuggingFace source with: "
                "pip install 'mobius-build[hf]'"
            )
        if as_json:
            typer.echo(json.dumps([family.to_dict() for family in found], indent=2))
            return
        from rich.console import Console

        console = Console()
        if model_type is None:
            console.print(_overview(found))
        for family in () if model_type is None else found:
            console.print(_title(family))
            console.print(_details(family) if family.cells else "Not measured.")


def _overview(families: Sequence[Family]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    # Sources of one model type make the same graphs; one of them was measured.
    kinds = itertools.groupby(families, key=lambda family: family.model_type)
    rows = [max(group, key=lambda each: len(each.cells)) for _, group in kinds]
    dtypes = [dtype for dtype in _DTYPES if any(row.largest(dtype) is not None for row in rows)]
    eps = dict.fromkeys(ep for row in rows for ep in row.verified())
    table = Table(box=SIMPLE_HEAD, pad_edge=False, expand=True, caption_justify="left")
    if eps:
        table.caption = (
            "Largest difference of a logit, relative to the largest logit of the reference, of "
            f"graphs for {', '.join(eps)}, or as many of them as EPs says, on ONNX Runtime's CPU "
            "provider. `mobius models MODEL_TYPE` has each one."
        )
    table.add_column("model_type", no_wrap=True)
    for dtype in dtypes:
        table.add_column(dtype, justify="right", no_wrap=True)
    table.add_column("EPs", justify="right", no_wrap=True)
    table.add_column("Features", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in rows:
        table.add_row(
            row.model_type,
            *(_number(row.largest(dtype)) for dtype in dtypes),
            str(len(row.verified()) or "-"),
            ", ".join(row.features),
        )
    return table


def _title(family: Family) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in family.versions)
    measured = f", measured with {versions}" if versions else ""
    return f"{family.model_type} from {family.source}{measured}"


def _details(family: Family) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("Layout", "EP", "dtype", "Scenario"):
        table.add_column(name)
    for name in ("Difference", "Relative"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Refused")
    for cell in family.cells:
        numbers = (_number(cell.max_abs), _number(cell.max_rel))
        table.add_row(cell.layout, cell.ep, cell.dtype, cell.scenario, *numbers, cell.refused or "")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"
