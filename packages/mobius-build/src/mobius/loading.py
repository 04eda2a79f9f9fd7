"""Read a saved package back: manifest and graphs now, weights when they are used."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from mobius.errors import PackageLoadError, cause_of
from mobius.manifest import MANIFEST_NAME, Manifest

__all__ = ["read_manifest", "read_package", "require_data"]


def read_package(directory: Path) -> tuple[Manifest, dict[str, ir.Model], tuple[Path, ...]]:
    """Return the manifest, the graphs and the tokenizer files of a package.

    Initializers of a package that was saved without weights have no data, so that they can be
    bound.

    Raises:
        PackageLoadError: naming the file that is missing, cut off or damaged.
    """
    if not directory.is_dir():
        raise PackageLoadError(f"{directory} is not a folder. Save a package there first.")
    manifest = read_manifest(directory / MANIFEST_NAME)
    models = {
        key: _read_model(directory / entry.path, with_weights=manifest.weights)
        for key, entry in manifest.models.items()
    }
    files = tuple(directory / name for name in manifest.files)
    for path in files:
        if not path.is_file():
            raise PackageLoadError(f"{path} is missing from the package. Build it again.")
    return manifest, models, files


def read_manifest(path: Path) -> Manifest:
    """Return the manifest in the file `path`.

    Raises:
        PackageLoadError: if it is missing or damaged.
    """
    if not path.parent.is_dir():
        found = "is a file" if path.parent.exists() else "does not exist"
        raise PackageLoadError(f"{path.parent} {found}. Name the folder of a package.")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        next_step = "Build it again."
        if (path.parent / "config.json").is_file() and not any(path.parent.rglob("*.onnx")):
            next_step = "It looks like a checkpoint: `mobius build` makes a package of it."
        raise PackageLoadError(
            f"{path} is missing, so {path.parent} is not a package of Mobius, or saving it did "
            f"not finish. {next_step}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise PackageLoadError(f"{path} cannot be read: {error}") from error
    manifest = Manifest.from_json(text, where=str(path))
    if manifest.dtype is not None and manifest.dtype not in ir.DataType.__members__:
        raise PackageLoadError(f"{path}: {manifest.dtype!r} is not an ONNX dtype.")
    return manifest


def require_data(manifest: Manifest, folder: Path) -> None:
    """Refuse a package whose weights are not where its graphs look for them.

    Raises:
        PackageLoadError: naming the file that is missing.
    """
    for entry in manifest.models.values():
        for name in (*(() if entry.data is None else (entry.data,)), *entry.references):
            if manifest.weights and not (folder / name).is_file():
                raise PackageLoadError(
                    f"{folder / name}, which holds weights of {entry.path}, is missing. Copy it "
                    "there or build the package again."
                )


def _read_model(path: Path, *, with_weights: bool) -> ir.Model:
    if not path.is_file():
        raise PackageLoadError(f"{path} is missing from the package. Build it again.")
    try:
        model = ir.load(path)
    except Exception as error:  # protobuf, onnx and onnx_ir each raise their own kinds
        raise PackageLoadError(
            f"{path} is not a readable ONNX file ({cause_of(error)}). Build the package again."
        ) from error
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor):
                value.const_value = _mapped(tensor, path) if with_weights else None
    return model


def _mapped(tensor: ir.ExternalTensor, model_path: Path) -> ir.ExternalTensor:
    """Return `tensor` once its bytes are known to be there.

    onnx_ir refuses to read data files that have several hard links or that a symbolic link leads
    out of the folder; a copy made with `cp -l` and the cache of a hub are like that. The user has
    named this folder, and a location that leaves it by name is refused here, so such files are
    addressed by their full path instead.
    """
    folder = model_path.parent
    location = Path(tensor.location)
    if location.is_absolute() or ".." in location.parts:
        raise PackageLoadError(
            f"{model_path}: weight {tensor.name!r} is in {str(location)!r}, outside the package. "
            "Do not use this package if you do not know where it is from."
        )
    path = folder / location
    try:
        status = path.stat()
    except OSError as error:
        raise PackageLoadError(
            f"{path}, which holds the weights of {model_path.name}, cannot be read "
            f"({error.strerror}). Copy it beside the graph or build the package again."
        ) from error
    end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
    if status.st_size < end:
        raise PackageLoadError(
            f"{path} is cut off: it has {status.st_size} bytes, and {tensor.name!r} ends at {end}. "
            "Copy it again or build the package again."
        )
    if status.st_nlink == 1 and path.resolve().is_relative_to(folder.resolve()):
        return tensor
    return ir.ExternalTensor(
        path.resolve(),
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tuple(tensor.shape)),
        name=tensor.name,
    )
