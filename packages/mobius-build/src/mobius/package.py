"""`ModelPackage`: the graphs of one build, and everything that goes with them into a folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from mobius.errors import PackageError
from mobius.genai import GENAI_CONFIG
from mobius.generation import GenerationSettings
from mobius.loading import read_package
from mobius.manifest import MANIFEST_NAME, GenerationEntry, RuntimeOptions, SourceInfo
from mobius.quantization import Quantization
from mobius.report import OptimizationReport, refusal_lines
from mobius.saving import Progress, save_package
from mobius.weight_files import Stamp, stamp_files
from mobius.weights import bind_weights, collect_parameters
from mobius_components import ArchitectureConfig
from mobius_eps import EpCapabilities

__all__ = ["ModelPackage"]


class ModelPackage(Mapping[str, ir.Model]):
    """The graphs of one build by key (`package["model"]`), with their weights and files.

    A parameter is known by the name that it had when the package was made, whatever optimisation
    renames, packs or transposes afterwards: weights bind to the original values, and what was
    derived from them is computed while the package is saved.

    Attributes:
        roles: Role of each graph, by the same keys.
        config: Architecture that the graphs were made from, if there is one.
        capabilities: Capabilities of the execution provider, if the graphs were optimised here.
        ep: Name of the execution provider.
        dtype: Element type of weights and activations, if known.
        reports: What optimisation did to each graph; empty before it ran and after `load`.
        files: Tokenizer and generation files that are saved beside the graphs.
        texts: Such files by name that are made while saving.
        source: Where the model came from, if from a source.
        generation: Special tokens and search defaults, if they are known.
        quantization: How weights were made integers, as the manifest has it, if they were.
        allow_non_finite: Whether weights with NaN or infinite values may be saved.
    """

    roles: Mapping[str, str]
    config: ArchitectureConfig | None
    capabilities: EpCapabilities | None
    ep: str
    dtype: ir.DataType | None
    reports: Mapping[str, OptimizationReport]
    files: tuple[Path, ...]
    texts: Mapping[str, Callable[[], str]]
    source: SourceInfo | None
    generation: GenerationSettings | None
    quantization: Mapping[str, Any] | None
    allow_non_finite: bool

    def __init__(
        self,
        models: Mapping[str, ir.Model],
        *,
        roles: Mapping[str, str],
        config: ArchitectureConfig | None = None,
    ) -> None:
        """Make a package of `models`; the weights that they lack are its parameters.

        Args:
            models: The graphs. With more than one, a key is also the name of a folder.
            roles: The role of each graph.
            config: The architecture.

        Raises:
            PackageError: if a key cannot name a folder, or keys and roles differ.
        """
        _check_keys(models, roles)
        self._models = dict(models)
        self._parameters = collect_parameters(self._models.values())
        self._weight_stamps = stamp_files(
            value.const_value
            for model in self._models.values()
            for graph in model.graphs()
            for value in graph.initializers.values()
        )
        self._loaded_summaries: Mapping[str, Mapping[str, Any] | None] = {}
        self._loaded_runtime: RuntimeOptions | None = None
        self._loaded_generation: GenerationEntry | None = None
        self.roles = dict(roles)
        self.config = config
        self.capabilities = None
        self.ep = "default"
        self.dtype = None
        self.reports = {}
        self.files = ()
        self.texts = {}
        self.source = None
        self.generation = None
        self.quantization = None
        self.allow_non_finite = False

    def __getitem__(self, key: str) -> ir.Model:
        """Return the graph of a key."""
        return self._models[key]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self._models)

    def __len__(self) -> int:
        """Return the number of graphs."""
        return len(self._models)

    def __repr__(self) -> str:
        """Return keys, target and whether weights are loaded."""
        dtype = "unknown" if self.dtype is None else self.dtype.name
        state = "loaded" if self.is_loaded else "without weights"
        return f"ModelPackage({list(self)}, ep={self.ep!r}, dtype={dtype}, {state})"

    def with_build(
        self,
        *,
        ep: EpCapabilities,
        dtype: ir.DataType,
        reports: Mapping[str, OptimizationReport],
        quantization: Quantization | None = None,
    ) -> ModelPackage:
        """Return this package (same graphs) with what it was built for.

        Of a loaded package whose graphs were optimised again, `genai_config.json` stays behind: it
        is for another execution provider.
        """
        package = copy.copy(self)
        package.files = tuple(path for path in self.files if path.name != GENAI_CONFIG)
        package.capabilities = ep
        package.ep = ep.name
        package.dtype = dtype
        package.quantization = None if quantization is None else quantization.to_dict()
        package.reports = dict(reports)
        return package

    def with_source(
        self,
        *,
        name: str,
        revision: str | None,
        files: Iterable[Path] = (),
        texts: Mapping[str, Callable[[], str]] = MappingProxyType({}),
        generation: GenerationSettings | None = None,
    ) -> ModelPackage:
        """Return this package (same graphs) with where it came from and what goes with it."""
        package = copy.copy(self)
        package.source = SourceInfo(name, revision)
        package.files = tuple(files)
        package.texts = dict(texts)
        package.generation = generation
        return package

    def parameters(self) -> Mapping[str, tuple[ir.Value, ...]]:
        """Return the values that a checkpoint fills, by parameter name.

        These are the initializers that had no data when the package was made. A name that occurs
        in several graphs has one value for each.
        """
        return dict(self._parameters)

    @property
    def is_loaded(self) -> bool:
        """Whether every initializer has its data, or all that it is computed from."""
        return not collect_parameters(self._models.values())

    def apply_weights(
        self, tensors: Mapping[str, ir.TensorProtocol], *, allow_non_finite: bool = False
    ) -> None:
        """Bind one tensor to each parameter; nothing is read before the package is saved.

        Args:
            tensors: A tensor for each name in `parameters()`, of the parameter's shape. Floats are
                cast to the parameter's dtype when they are written.
            allow_non_finite: Let `save` write NaN, infinities, and values that overflow the
                parameter's dtype; otherwise it refuses and names them.

        Raises:
            WeightsError: listing every missing, left-over and mismatched tensor. Nothing is bound.
        """
        bind_weights(self._parameters, tensors)
        self._weight_stamps = {**self._weight_stamps, **stamp_files(tensors.values())}
        self.allow_non_finite = allow_non_finite

    def save(
        self,
        directory: str | PathLike[str],
        *,
        overwrite: bool = False,
        progress: Progress | None = None,
        weights: str = "copy",
    ) -> None:
        """Write the package into a folder, completely or not at all.

        One graph is `model.onnx` with its weights in `model.onnx.data`; each of several is
        `<key>/model.onnx`. Beside them lie the tokenizer files and `mobius.json`, which says how
        the package was made. A text decoder that onnxruntime-genai can run has a
        `genai_config.json` too; the manifest says why another has none. Without weights the graphs
        are the same files, and there is no data.

        Args:
            directory: A new or empty folder.
            overwrite: Replace a package that is there. Any other folder with content is refused.
            progress: Called with bytes done, bytes in total and the tensor's name, by one thread at
                a time.
            weights: `"copy"` writes all weights to `model.onnx.data`. `"reference"` writes there
                only those that had to be computed; for the others the graph points into the
                checkpoint's own files. Those are copied whole beside the graph, or stay where they
                are if `directory` is the folder that holds them: the package's files are then
                written beside them, and the checkpoint must not change any more. Weights that are
                not written are still read once to see that they are finite, unless
                `allow_non_finite` is set.

        Raises:
            PackageSaveError: for a folder that cannot be written or is full, and for weights whose
                file has changed since they were bound, with nothing changed.
            NonFiniteWeightsError: for weights that are not finite, unless they are allowed.
            WeightsError: if only some of the weights are loaded.
        """
        save_package(self, Path(directory), overwrite=overwrite, progress=progress, weights=weights)

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> ModelPackage:
        """Read a saved package; weights stay on disk until they are used.

        Raises:
            PackageLoadError: naming the file that is missing, cut off or damaged.
        """
        manifest, models, files = read_package(Path(directory))
        roles = {key: entry.role for key, entry in manifest.models.items()}
        package = cls(models, roles=roles)
        package.ep = manifest.execution_provider
        package.dtype = None if manifest.dtype is None else ir.DataType[manifest.dtype]
        package.source = manifest.source
        package.quantization = manifest.quantization
        package.files = files
        package._loaded_runtime = manifest.runtime
        package._loaded_generation = manifest.generation
        package._loaded_summaries = {
            key: entry.optimization for key, entry in manifest.models.items()
        }
        return package

    def runtime_options(self) -> RuntimeOptions | None:
        """Return what a runtime's configuration starts from; `None` if nothing was optimised.

        A graph with control flow cannot be captured on a GPU: branches are chosen on the host.
        """
        if self.capabilities is None:
            return self._loaded_runtime
        return RuntimeOptions(
            provider_options=dict(self.capabilities.provider_options),
            graph_capture=self.capabilities.enable_graph_capture
            and not any(map(_has_control_flow, self.values())),
            int4_accuracy_level=self.capabilities.default_int4_accuracy_level,
        )

    def weight_stamps(self) -> Mapping[Path, Stamp]:
        """Return what the files of the weights were when the weights were bound."""
        return self._weight_stamps

    def loaded_generation(self) -> GenerationEntry | None:
        """Return what the manifest that the package was loaded from says about generating text."""
        return self._loaded_generation

    def optimization_summary(self, key: str) -> Mapping[str, Any] | None:
        """Return what optimisation did to a graph, short enough for the manifest."""
        report = self.reports.get(key)
        if report is None:
            return self._loaded_summaries.get(key)
        return {
            "nodes_before": report.nodes_before,
            "nodes_after": report.nodes_after,
            "stages": [
                {
                    "phase": stage.phase.value,
                    "name": stage.name,
                    "applications": stage.applications,
                    "deltas": {delta.op_type: delta.count for delta in stage.deltas},
                    "refusals": refusal_lines(stage.refusals),
                }
                for stage in report.stages
            ],
            "warnings": list(report.warnings),
        }


def _has_control_flow(model: ir.Model) -> bool:
    # Not those of functions: what stays of them has a kernel, and its body is not expanded.
    return any(
        node.domain == "" and node.op_type in ("If", "Loop", "Scan")
        for node in model.graph.all_nodes()
    )


def _check_keys(models: Mapping[str, ir.Model], roles: Mapping[str, str]) -> None:
    if not models:
        raise PackageError("A package needs at least one graph.")
    if models.keys() != roles.keys():
        raise PackageError(
            f"Every graph needs a role: graphs {sorted(models)}, roles for {sorted(roles)}."
        )
    seen: set[str] = set()
    for key in models:
        plain = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
        if not plain or key.casefold() in seen or key == MANIFEST_NAME:
            raise PackageError(
                f"{key!r} cannot name a graph, since it names a folder too: letters, digits, '-' "
                "and '_' only, and no two keys that differ in case alone."
            )
        seen.add(key.casefold())
