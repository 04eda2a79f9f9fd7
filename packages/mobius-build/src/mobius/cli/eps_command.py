"""`mobius eps`: the registered execution providers and what each can run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mobius.cli.console import DebugOption, JsonOption, reported_errors

if TYPE_CHECKING:
    import onnx_ir as ir

    from mobius_eps import EpCapabilities

__all__ = ["eps"]


def eps(
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the execution providers that models can be built for."""
    with reported_errors(debug=debug, json_lines="eps" if as_json else None):
        from mobius_eps import ep_registry

        known = [ep_registry.require(name) for name in ep_registry.names()]
        if as_json:
            typer.echo(json.dumps({item.name: _as_json(item) for item in known}, indent=2))
        else:
            Console().print(_table(known))


def _table(known: Iterable[EpCapabilities]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("EP", no_wrap=True)
    for title in ("dtypes", "GQA", "packed QKV", "RoPE in GQA", "skip norm", "fused MatMul"):
        table.add_column(title)
    for item in known:
        table.add_row(
            item.name,
            _names(item.dtypes),
            _names(item.gqa_dtypes),
            _names(item.qkv_pack_dtypes),
            # Without GroupQueryAttention there is nothing to fuse the rotary embedding into.
            _mark(item.supports_fused_rope and bool(item.gqa_dtypes)),
            _mark(item.supports_skip_layer_norm),
            _mark(item.supports_fused_matmul),
        )
    return table


def _names(dtypes: Iterable[ir.DataType]) -> str:
    from mobius.dtypes import short_name

    return " ".join(map(short_name, sorted(dtypes))) or "-"


def _mark(supported: bool) -> str:
    return "yes" if supported else "-"


def _as_json(item: Any) -> dict[str, Any]:
    return {field.name: _plain(getattr(item, field.name)) for field in dataclasses.fields(item)}


def _plain(value: Any) -> Any:
    import onnx_ir as ir

    if isinstance(value, frozenset):
        return sorted(item.name if isinstance(item, ir.DataType) else item for item in value)
    if isinstance(value, tuple):
        return [_as_json(item) for item in value]
    if dataclasses.is_dataclass(value):
        return _as_json(value)
    return dict(value) if isinstance(value, Mapping) else value
