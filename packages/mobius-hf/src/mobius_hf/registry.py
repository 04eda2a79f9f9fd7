"""`model_type` -> its architecture. Only the module that is asked for is imported."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from mobius_hf import architectures
from mobius_hf.architectures.base import Architecture
from mobius_hf.errors import ArchitectureRegistrationError, UnknownModelTypeError

_NOT_A_MODEL_TYPE = "base"
# Names that checkpoints give a family that has another. Hunyuan-A13B's was published as `hunyuan`,
# before transformers had `HunYuanMoEV1ForCausalLM`, which its file names. Kimi K2 brings
# DeepSeek-V3's own code; transformers takes one name for the other too (`Kimi_K25Config`).
SAME_FAMILY: Mapping[str, str] = MappingProxyType(
    {"hunyuan": "hunyuan_v1_moe", "kimi_k2": "deepseek_v3"}
)


_registered: dict[str, Architecture] = {}


def supported_model_types() -> tuple[str, ...]:
    """Return every supported `model_type`, sorted, with `_` for `-`."""
    return tuple(sorted({*_built_in(), *(each.replace("-", "_") for each in _registered)}))


def register_architecture(architecture: Architecture, *, overwrite: bool = False) -> None:
    """Add a family of your own, so that checkpoints of its `model_type` can be built.

    Args:
        architecture: The family.
        overwrite: Replace one that was registered before instead of refusing.

    Raises:
        ArchitectureRegistrationError: if this is no `Architecture`, or its `model_type` is built
            in or registered.
    """
    if not isinstance(architecture, Architecture):
        raise ArchitectureRegistrationError(
            f"{architecture!r} cannot be registered; an instance of a subclass of "
            "mobius_hf.architectures.base.Architecture is needed."
        )
    name = architecture.model_type
    if name.replace("-", "_") in _built_in():
        raise ArchitectureRegistrationError(
            f"The model_type {name!r} is built in and cannot be replaced. Use another one."
        )
    if name in _registered and not overwrite:
        raise ArchitectureRegistrationError(
            f"The model_type {name!r} is registered already; pass overwrite=True to replace it, or "
            "use another one."
        )
    _registered[name] = architecture


def _built_in() -> frozenset[str]:
    names = (module.name for module in pkgutil.iter_modules(architectures.__path__))
    return frozenset(name for name in names if name != _NOT_A_MODEL_TYPE)


def find_architecture(model_type: object, *, config: Path, has_own_code: bool) -> Architecture:
    """Return the architecture of `model_type`.

    Args:
        model_type: As `config.json` has it; `None` if it has none.
        config: Path of that file, for messages.
        has_own_code: The checkpoint brings Python code of its own.

    Raises:
        UnknownModelTypeError: if there is none; it lists those that there are.
    """
    supported = supported_model_types()
    module = str(model_type).replace("-", "_")
    if isinstance(model_type, str) and model_type in _registered:
        return _registered[model_type]
    if isinstance(model_type, str):
        model_type = SAME_FAMILY.get(model_type, model_type)
        module = model_type.replace("-", "_")
    # Only names from our own listing are imported: this string comes from a file.
    if isinstance(model_type, str) and module in _built_in():
        found = importlib.import_module(f"{architectures.__name__}.{module}").ARCHITECTURE
        if isinstance(found, Architecture) and found.model_type == model_type:
            return found
    listed = f"Supported: {', '.join(supported)}."
    if model_type is None:
        raise UnknownModelTypeError(
            f"{config} has no 'model_type', which decides the architecture. {listed}"
        )
    close = difflib.get_close_matches(module, supported)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    own_code = (
        " The checkpoint brings Python code of its own (auto_map), which Mobius does not run: it "
        "builds graphs from architectures that it knows."
        if has_own_code
        else ""
    )
    raise UnknownModelTypeError(
        f"{config}: unknown model_type {model_type!r}.{hint}{own_code} {listed}"
    )
