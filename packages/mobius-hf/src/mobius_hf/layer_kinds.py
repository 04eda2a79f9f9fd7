"""Names of layers in a config -> the layer types of `ArchitectureConfig`.

The same kind of layer is called `mamba`, `linear_attention` or `recurrent`, depending on family and
age of the file.
"""

from __future__ import annotations

from collections.abc import Mapping

from mobius_hf.config import ConfigFields


def read_layer_kinds(
    fields: ConfigFields, kinds: Mapping[str, str], *spellings: str
) -> tuple[str, ...] | None:
    """Return the type of each layer; `None` if no field says it.

    Args:
        fields: The config.
        kinds: What a family calls its layers, and what they are.
        spellings: Names of the field, the first that has a value being read.

    Raises:
        CheckpointConfigError: if the field is no list, or holds another name.
    """
    stated = {name: fields.value(name) for name in spellings}
    for name, value in stated.items():
        if value is None:
            continue
        return tuple(kinds[each] for each in fields.words(name, kinds))
    return None
