"""Repository -> `Checkpoint`: every tensor by name, from one safetensors file or from shards."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from mobius_hf.errors import CheckpointError
from mobius_hf.mapped_tensor import MappedTensor, open_safetensors
from mobius_hf.repository import Repository, gguf_hint

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_logger = logging.getLogger(__name__)


class Checkpoint(Mapping[str, MappedTensor]):
    """The tensors of a checkpoint by name. They stay on disk until they are read.

    Attributes:
        files: The safetensors files that hold them.
    """

    def __init__(self, tensors: Mapping[str, MappedTensor], files: tuple[Path, ...]) -> None:
        self._tensors = dict(tensors)
        self.files = files

    def __getitem__(self, name: str) -> MappedTensor:
        """Return the tensor called `name`."""
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over names, in file order."""
        return iter(self._tensors)

    def __len__(self) -> int:
        """Return how many tensors there are."""
        return len(self._tensors)


def open_checkpoint(repository: Repository) -> Checkpoint:
    """Open the weights of `repository`, fetching their files if it is remote.

    Where there is an index, it alone decides which file each tensor comes from: other weight
    files, and tensors that it does not list, are not part of the checkpoint.

    Raises:
        CheckpointError: if the weights are missing, damaged, or not safetensors.
        ModelNotFoundError: if a file cannot be fetched.
    """
    names = repository.names()
    if INDEX in names:
        return _open_shards(repository, names)
    if SINGLE in names:
        path = repository.path(SINGLE)
        return Checkpoint(open_safetensors(path), (path,))
    raise CheckpointError(_nothing_to_read(repository, names))


def _open_shards(repository: Repository, names: frozenset[str]) -> Checkpoint:
    index = repository.path(INDEX)
    weight_map = _read_index(index)
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if shard not in names]
    if missing:
        raise CheckpointError(
            f"{repository.where} lacks {', '.join(missing)} of the {len(shards)} weight files "
            f"that {index} lists. Download what is missing."
        )
    paths = repository.paths(shards)
    opened = {shard: open_safetensors(path) for shard, path in paths.items()}
    tensors = {}
    for shard in shards:
        for name, tensor in opened[shard].items():
            if weight_map.get(name) == shard:
                tensors[name] = tensor
            elif name not in weight_map:
                _logger.warning("%s: ignored tensor %r, which the index lacks", shard, name)
    absent = [name for name in weight_map if name not in tensors]
    if absent:
        raise CheckpointError(
            f"{index} says that {absent[0]!r} is in {weight_map[absent[0]]}, but that file does "
            f"not hold it ({len(absent)} in all). Index and files are of different "
            "checkpoints: download both again."
        )
    return Checkpoint(tensors, tuple(paths.values()))


def _read_index(index: Path) -> dict[str, str]:
    try:
        content = json.loads(index.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{index} is not JSON: {error}. Download it again.") from error
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{index} has no 'weight_map', the object that gives each tensor's file. "
            "Download it again."
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise CheckpointError(
                f"{index} puts {name!r} in {shard!r}; needed: the name of a .safetensors file in "
                "the same folder. Do not use this checkpoint unless you know where it is from."
            )
    return weight_map


def _is_plain_name(shard: str) -> bool:
    return (
        shard.endswith(".safetensors")
        and PurePosixPath(shard).name == shard
        and PureWindowsPath(shard).name == shard
    )


def _nothing_to_read(repository: Repository, names: frozenset[str]) -> str:
    pickles = sorted(name for name in names if name.endswith(_PICKLE_SUFFIXES))
    others = sorted(name for name in names if name.endswith(".safetensors"))
    if others:
        return (
            f"{repository.where} has {', '.join(others[:3])}, but neither {SINGLE} nor {INDEX}. "
            f"Add the index that belongs to them, or name a single file {SINGLE}."
        )
    if pickles:
        return (
            f"{repository.where} has its weights only as {pickles[0]}, a pickle, which can run "
            "code when it is opened and is never read. Convert it to safetensors where you trust "
            "it, with transformers and torch: AutoModelForCausalLM.from_pretrained("
            f"{repository.name!r}, dtype='auto').save_pretrained('converted'), then use the "
            "folder 'converted'."
        )
    if hint := gguf_hint(repository.name, names):
        return f"{repository.where} holds no weights in safetensors.{hint}"
    return (
        f"{repository.where} holds no weights: needed is {SINGLE} or {INDEX}; "
        f"it has: {', '.join(sorted(names)) or 'nothing'}."
    )
