"""`explain`: what optimisation would do to a model for a target, and what it would leave alone.

The graph is optimised without its weights, which need not be there; nothing is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from mobius.api import build
from mobius.dtypes import parse_dtype
from mobius.model_files import model_dtype, read_manifest, read_model_file
from mobius.optimizer import optimize_model
from mobius.padding import PaddingSide
from mobius.quantization import Quantization
from mobius.report import OptimizationReport
from mobius_eps import EpCapabilities, get_ep

__all__ = ["Explanation", "explain"]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `explain` found.

    Attributes:
        model: The model, as it was named.
        ep: Name of the execution provider.
        dtype: Element type that the stages were chosen for.
        reports: What each stage would do to each graph.
    """

    model: str
    ep: str
    dtype: ir.DataType
    reports: Mapping[str, OptimizationReport]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {
            "model": self.model,
            "ep": self.ep,
            "dtype": self.dtype.name,
            "graphs": {key: report.to_dict() for key, report in self.reports.items()},
        }


def explain(
    model: str | Path,
    *,
    ep: str | EpCapabilities = "default",
    dtype: str | ir.DataType | None = None,
    role: str = "decoder",
    opset: int | None = None,
    padding_side: str = PaddingSide.RIGHT,
    quantize: str | Quantization | None = None,
    **source: Any,
) -> Explanation:
    """Explain a model for a target.

    Args:
        model: An `.onnx` file, the folder of a package, or what `build` takes.
        ep: Name of a registered execution provider, or its capabilities.
        dtype: Element type that the stages are chosen for; `None` is the model's own.
        role: What an `.onnx` file is for; anything else knows its own.
        opset: Newest opset that the result may be in, as for `optimize_model`.
        padding_side: As for `optimize_model`.
        quantize: As for `optimize_model`.
        **source: Where the model comes from, as for `build`: `revision`, `token`, `cache_dir`,
            `offline`.

    Raises:
        ValueError: for an unknown EP, dtype, role or opset, before anything is read.
        ModelFileError: if an `.onnx` file cannot be read.
        MobiusError: for whatever else is wrong with the model.
    """
    capabilities = ep if isinstance(ep, EpCapabilities) else get_ep(ep)
    chosen = None if dtype is None else parse_dtype(dtype)
    path = Path(model)
    manifest = read_manifest(path)
    if manifest is not None:
        named = {key: (path / each.path, each.role) for key, each in manifest.models.items()}
        if chosen is None and manifest.dtype is not None:
            chosen = ir.DataType[manifest.dtype]
    elif path.suffix.lower() == ".onnx" or path.is_file():
        named = {"model": (path, role)}
    else:
        package = build(
            model,
            execution_provider=capabilities,
            dtype=chosen,
            opset=opset,
            padding_side=padding_side,
            quantize=quantize,
            last_token_logits=None,
            load_weights=False,
            **source,
        )
        assert package.dtype is not None  # `build` always says
        return Explanation(str(model), capabilities.name, package.dtype, package.reports)
    reports: dict[str, OptimizationReport] = {}
    for key, (file, role_of_file) in named.items():
        graph = read_model_file(file, with_data=False)
        chosen = chosen or model_dtype(graph)
        reports[key] = optimize_model(
            graph,
            capabilities,
            chosen,
            role_of_file,
            opset=opset,
            padding_side=padding_side,
            quantize=quantize,
        )
    assert chosen is not None  # a package has a graph
    return Explanation(str(model), capabilities.name, chosen, reports)
