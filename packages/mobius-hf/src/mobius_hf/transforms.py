"""What a checkpoint's tensor must become to be a parameter: split, transposed, shifted, lazily.

A family lists its transforms; the first whose pattern matches a tensor's (renamed) name applies.
Nothing is read before the parameter is.
"""

from __future__ import annotations

import abc
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from mobius.streaming import WeightTensor
from mobius_components import ArchitectureConfig
from mobius_hf.errors import CheckpointError
from mobius_ir_rules.lazy import DerivedTensor, Expression, Leaf, Reshape, Slice, Transpose

Named = tuple[str, ir.TensorProtocol]


@dataclasses.dataclass(frozen=True)
class Transform(abc.ABC):
    """A change of the tensors whose name `pattern` matches, as `re.fullmatch` does."""

    pattern: str

    @abc.abstractmethod
    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield the parameters that `tensor` becomes.

        Raises:
            CheckpointError: if the tensor has another shape than the configuration says.
        """


@dataclasses.dataclass(frozen=True)
class Transposed(Transform):
    """A matrix, or a stack of them, that is stored `[..., in, out]`.

    Source: `transformers.pytorch_utils.Conv1D`, `GptOssExperts`, `Llama4TextExperts`.
    """

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield the matrix `[..., out, in]` under its own name."""
        del config
        source = leaf(tensor)
        *stacked, rows, columns = range(len(source.shape))
        perm = (*stacked, columns, rows)
        yield match.string, DerivedTensor(Transpose(source, perm), match.string)


@dataclasses.dataclass(frozen=True)
class Squeezed(Transform):
    """A vector that is stored as a matrix of one row. Source: `Ernie4_5_MoeStatics`."""

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield the vector under its own name."""
        del config
        source = leaf(tensor)
        yield match.string, DerivedTensor(Reshape(source, source.shape[-1:]), match.string)


@dataclasses.dataclass(frozen=True)
class PlusOne(Transform):
    """A norm's weight that is stored as its distance from one. Source: `GemmaRMSNorm`.

    The sum is float32, as transformers computes it, and is rounded once to the build's dtype.
    """

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield the weight itself under its own name."""
        del config

        def evaluate() -> ir.TensorProtocol:
            return ir.tensor(tensor.numpy().astype(np.float32) + np.float32(1))

        shape = ir.Shape(tensor.shape.numpy())
        yield match.string, ir.LazyTensor(evaluate, ir.DataType.FLOAT, shape, name=match.string)


@dataclasses.dataclass(frozen=True)
class Softplus(Transform):
    """A parameter that is stored as what softplus makes positive. Source: `XIELUActivation`."""

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield the positive parameter under its own name."""
        del config

        def evaluate() -> ir.TensorProtocol:
            return ir.tensor(np.logaddexp(tensor.numpy().astype(np.float32), np.float32(0)))

        shape = ir.Shape(tensor.shape.numpy())
        yield match.string, ir.LazyTensor(evaluate, ir.DataType.FLOAT, shape, name=match.string)


@dataclasses.dataclass(frozen=True)
class Split(Transform):
    """Several parameters stored as one, one after the other along the first axis.

    Attributes:
        into: Names of the parameters, with references to groups of the pattern.
        sizes: Length of each along the axis.
        transposed: The tensor is a matrix `[in, out]`, split along its last axis.
    """

    into: tuple[str, ...]
    sizes: Callable[[ArchitectureConfig], Sequence[int]]
    transposed: bool = False

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield the parts."""
        source: Expression = leaf(tensor)
        if self.transposed and len(source.shape) == 2:
            source = Transpose(source, (1, 0))
        sizes = self.sizes(config)
        _check_length(match.string, source, sum(sizes))
        start = 0
        for name, size in zip(self.into, sizes, strict=True):
            part = _rows(source, slice(start, start + size))
            start += size
            yield match.expand(name), DerivedTensor(part, match.expand(name))


@dataclasses.dataclass(frozen=True)
class SplitGroups(Transform):
    """Query, key and value stored group by group: `[groups, queries + key + value, head, ...]`.

    A group is a key/value head with its query heads. Source: `transformers` `GPTNeoXAttention`,
    `FalconAttention`.

    Attributes:
        into: Names of query, key and value.
    """

    into: tuple[str, str, str]

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield query, key and value."""
        source, size, groups = leaf(tensor), config.head_size, config.kv_heads
        queries = config.num_attention_heads // groups
        _check_length(match.string, source, groups * (queries + 2) * size)
        rest = source.shape[1:]
        grouped = Reshape(source, (groups, (queries + 2) * size, *rest))
        bounds = (0, queries * size, (queries + 1) * size, (queries + 2) * size)
        for name, start, stop in zip(self.into, bounds, bounds[1:], strict=False):
            every = (slice(None),) * len(rest)
            part = Slice(grouped, (slice(None), slice(start, stop), *every))
            flat = Reshape(part, (groups * (stop - start), *rest))
            yield match.expand(name), DerivedTensor(flat, match.expand(name))


@dataclasses.dataclass(frozen=True)
class SplitHeads(Transform):
    """A matrix `[heads, size]` that becomes a parameter for each head. Source: `CohereLayerNorm`.

    Attributes:
        into: Name of the parameters, with references to groups of the pattern and `{}` for the
            head.
    """

    into: str

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield the rows."""
        del config
        source = leaf(tensor)
        for head in range(source.shape[0]):
            name = match.expand(self.into).format(head)
            row = Reshape(_rows(source, slice(head, head + 1)), source.shape[1:])
            yield name, DerivedTensor(row, name)


@dataclasses.dataclass(frozen=True)
class SplitShards(Transform):
    """Query, value and key of each of four shards, one after the other.

    Source: `transformers` `CodeGenAttention`.

    Attributes:
        into: Names of query, value and key.
    """

    into: tuple[str, str, str]

    def apply(
        self, match: re.Match[str], tensor: ir.TensorProtocol, config: ArchitectureConfig
    ) -> Iterator[Named]:
        """Yield query, value and key."""
        source, width = leaf(tensor), config.hidden_size
        _check_length(match.string, source, 3 * width)
        shards, part = 4, width // 4
        grouped = Reshape(source, (shards, 3 * part, *source.shape[1:]))
        every = (slice(None),) * (len(source.shape) - 1)
        for index, name in enumerate(self.into):
            rows = slice(index * part, (index + 1) * part)
            flat = Reshape(Slice(grouped, (slice(None), rows, *every)), (width, *source.shape[1:]))
            yield match.expand(name), DerivedTensor(flat, match.expand(name))


def leaf(tensor: ir.TensorProtocol) -> Leaf:
    """Return an expression for a checkpoint's tensor, which is read a part at a time."""
    read = WeightTensor(tensor, tensor.dtype)
    value = ir.Value(
        name=tensor.name, type=ir.TensorType(tensor.dtype), shape=read.shape, const_value=read
    )
    return Leaf(value)


def _rows(source: Expression, rows: slice) -> Slice:
    return Slice(source, (rows, *(slice(None),) * (len(source.shape) - 1)))


def _check_length(name: str, source: Expression, needed: int) -> None:
    if source.shape[0] != needed:
        raise CheckpointError(
            f"The tensor {name!r} has shape {list(source.shape)}; the configuration needs "
            f"{needed} along the axis that holds several parameters. Does config.json belong to "
            "this checkpoint?"
        )


def qkv_sizes(config: ArchitectureConfig) -> Sequence[int]:
    """Return the widths of query, key and value."""
    keys = config.kv_heads * config.head_size
    return config.num_attention_heads * config.head_size, keys, keys


def gate_up_sizes(config: ArchitectureConfig) -> Sequence[int]:
    """Return the widths of the gate and of its partner."""
    return config.intermediate_size, config.intermediate_size


def shared_gate_up_sizes(config: ArchitectureConfig) -> Sequence[int]:
    """Return the widths of the gate and of its partner in the shared expert."""
    assert config.moe is not None  # only families with experts have a shared one
    width = config.moe.shared_expert_intermediate_size
    assert width is not None
    return width, width
