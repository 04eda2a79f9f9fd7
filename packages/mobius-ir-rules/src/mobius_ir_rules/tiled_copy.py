"""Copying between numpy arrays of any strides and dtypes, fast where one is the transpose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# A transposed copy goes tile by tile through two small arrays that fit a core's caches: rows of the
# source are read, and rows of the result written, as they lie in memory, and only what is in the
# cache is walked across. Large arrays often have a power of two for a stride, so that columns of
# theirs fall into few lines of a cache. Several tiles go in one call of numpy, which gives up
# Python's lock for it: two threads would otherwise wait for each other at every tile.
_TILE = 128
_BUFFER_BYTES = 1 << 17
_WORTH_TILING = 16


def copy(out: np.ndarray, source: np.ndarray) -> None:
    """Copy `source` to `out`, of equal shape, converting; in tiles if one is the transpose."""
    if out.dtype == source.dtype and out.dtype.kind == "V":
        # The dtypes of ml_dtypes: numpy copies plain integers of that width faster.
        bits = np.dtype(f"u{out.itemsize}")
        out, source = out.view(bits), source.view(bits)
    if out.ndim > 2 and _order(out)[0] == _order(source)[0] == 0:
        for out_part, source_part in zip(out, source, strict=True):
            copy(out_part, source_part)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if out.ndim != 2 or min(out.shape) < _WORTH_TILING or _order(out) == _order(source):
            np.copyto(out, source, casting="unsafe")
        elif _order(out) == [0, 1]:
            _copy_transposed(out, source.T)
        else:
            _copy_transposed(out.T, source)


def _order(array: np.ndarray) -> Sequence[int]:
    """Return the axes from the slowest to the fastest in memory."""
    return sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))


def _copy_transposed(out: np.ndarray, source: np.ndarray) -> None:
    """Copy `source` [C, R] to `out` [R, C]; rows of both lie together in memory."""
    tiles = max(1, _BUFFER_BYTES // (_TILE * _TILE * out.itemsize))
    read, turned = np.empty((2, tiles, _TILE, _TILE), out.dtype)
    tiled = out.shape[0] // _TILE * _TILE
    for column in range(0, out.shape[1], _TILE):
        strip, into = source[column : column + _TILE], out[:, column : column + _TILE]
        for row in range(0, tiled, tiles * _TILE):
            stop = min(row + tiles * _TILE, tiled)
            count = (stop - row) // _TILE
            part, across = read[:count, : len(strip)], turned[:count, :, : len(strip)]
            taken = strip[:, row:stop].reshape(len(strip), count, _TILE)
            np.copyto(part, taken.swapaxes(0, 1), casting="unsafe")
            np.copyto(across, part.swapaxes(1, 2))
            np.copyto(into[row:stop], across.reshape(-1, len(strip)))
        np.copyto(into[tiled:], strip[:, tiled:].T, casting="unsafe")
