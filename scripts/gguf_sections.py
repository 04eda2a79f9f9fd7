"""What the documentation says of GGUF files: architectures and the model types that they are."""

from __future__ import annotations

import gguf

from mobius_hf.gguf.families import ALTERNATIVES, FAMILIES, REFUSED
from mobius_hf.registry import supported_model_types


def architectures() -> str:
    """Return the table of architectures that are read, and those of ours that are not."""
    lines = ["| `general.architecture` | `model_type` |", "| --- | --- |"]
    for name, family in sorted(FAMILIES.items()):
        kinds = [family.model_type]
        if name in ALTERNATIVES:
            kinds.append(ALTERNATIVES[name][1].model_type)
        shown = ", ".join(f"`{kind}`" for kind in dict.fromkeys(kinds))
        lines.append(f"| `{name}` | {shown} |")
    refused = "; ".join(f"`{name}`: {reason}" for name, reason in sorted(REFUSED.items()))
    lines += ["", f"Not read, although there are such families: {refused}."]
    ours = {_plain(name) for name in supported_model_types()}
    known = FAMILIES.keys() | REFUSED.keys()
    others = sorted(set(gguf.MODEL_ARCH_NAMES.values()) - known)
    others = [f"`{name}`" for name in others if _plain(name) in ours]
    if others:
        lines.append(f"Nor so far, although llama.cpp writes them: {', '.join(others)}.")
    return "\n".join(lines)


def _plain(name: str) -> str:
    """Return a name without what llama.cpp and HuggingFace spell differently."""
    return name.replace("_", "").replace("-", "")
