"""What a save will write: the layout of each graph, the files beside them, what must stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import onnx_ir as ir

from mobius.errors import PackageSaveError
from mobius.external_data import DataLayout, plan_layout
from mobius.manifest import MANIFEST_NAME
from mobius.references import References, find_references
from mobius.weight_files import files_of

if TYPE_CHECKING:
    from mobius.package import ModelPackage

__all__ = [
    "DATA_NAME",
    "MODEL_NAME",
    "PlannedModel",
    "input_files",
    "name_files",
    "plan_models",
    "refuse_inputs",
]

MODEL_NAME = "model.onnx"
DATA_NAME = "model.onnx.data"


@dataclasses.dataclass(frozen=True)
class PlannedModel:
    """One graph of a package that is being saved.

    Attributes:
        model: The graph.
        folder: Its folder, relative to the package.
        layout: Where its initializers go.
        references: Those that stay in files that are there.
    """

    model: ir.Model
    folder: PurePosixPath
    layout: DataLayout
    references: References

    @property
    def path(self) -> str:
        """The `.onnx` file, relative to the package."""
        return str(self.folder / MODEL_NAME)

    @property
    def data(self) -> str | None:
        """The data file that is written, relative to the package; `None` if there is none."""
        return str(self.folder / DATA_NAME) if self.layout.entries else None

    @property
    def written(self) -> tuple[str, ...]:
        """Every file that is written for this graph, relative to the package."""
        copied = (str(self.folder / name) for name in self.references.copied)
        return (self.path, *(() if self.data is None else (self.data,)), *copied)

    def bytes_to_write(self) -> int:
        """Return how many bytes of weights are written."""
        return sum(entry.length for entry in self.layout.entries) + self.references.bytes_to_copy()

    def bytes_to_check(self) -> int:
        """Return how many bytes are read to see that they are finite, and not written."""
        return sum(entry.length for entry in self.references.entries)


def plan_models(package: ModelPackage, target: Path, *, refer: bool) -> dict[str, PlannedModel]:
    """Plan each graph of `package`; nothing is read or written.

    Args:
        package: The package.
        target: Its folder, all links resolved.
        refer: Leave weights in the files that they are in.

    Raises:
        PackageSaveError: if there is nothing to refer to, or a name is taken.
    """
    weights = frozenset(value for values in package.parameters().values() for value in values)
    plans = {}
    for key, model in package.items():
        folder = PurePosixPath("." if len(package) == 1 else key)
        references = References()
        if refer:
            alone = len(package) == 1
            references = find_references(model, weights, target / folder, alone=alone)
        layout = plan_layout(model, DATA_NAME, weights, references.kept)
        plan = PlannedModel(model, folder, layout, references)
        taken = {PurePosixPath(name).name for name in (plan.path, plan.data) if name is not None}
        if found := taken.intersection(references.locations):
            raise PackageSaveError(
                f"{found.pop()} holds weights that the package would refer to, and is a file that "
                "saving writes. Save into another folder without weights='reference'."
            )
        plans[key] = plan
    return plans


def name_files(
    files: Iterable[Path], plans: Mapping[str, PlannedModel], written: Iterable[str]
) -> dict[str, Path]:
    """Return the files to be copied by the name they get, refusing names that are taken.

    Args:
        files: Tokenizer and generation files.
        plans: The graphs.
        written: Names of other files that are written.

    Raises:
        PackageSaveError: naming the file that is missing, or whose name is taken.
    """
    taken = {
        MANIFEST_NAME,
        *written,
        *(PurePosixPath(name).parts[0] for plan in plans.values() for name in plan.written),
    }
    folded = {name.casefold() for name in taken}  # some file systems do not tell case apart
    named: dict[str, Path] = {}
    for path in files:
        if path.name.casefold() in folded:
            raise PackageSaveError(
                f"{path} cannot be copied into the package: it already has a {path.name}. "
                "Rename one of the two."
            )
        if not path.is_file():
            raise PackageSaveError(f"{path} belongs into the package but is not a file.")
        folded.add(path.name.casefold())
        named[path.name] = path
    return named


def refuse_inputs(target: Path, inputs: Iterable[Path]) -> None:
    """Refuse to replace a folder that holds something that the package is still read from.

    Raises:
        PackageSaveError: naming it.
    """
    for path in inputs:
        if path.resolve().is_relative_to(target) or path.absolute().is_relative_to(target):
            raise PackageSaveError(
                f"{target} holds what this package is read from ({path}) and is not replaced. "
                "Choose another folder."
            )


def input_files(plans: Iterable[PlannedModel]) -> set[Path]:
    """Return the files that the weights which are written are read from."""
    return files_of(
        entry.tensor for plan in plans for entry in (*plan.layout.entries, *plan.references.entries)
    )
