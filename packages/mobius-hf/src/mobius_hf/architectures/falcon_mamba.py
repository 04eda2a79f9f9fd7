"""Falcon Mamba. Source: `transformers` `FalconMambaForCausalLM`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mobius_hf.architectures.mamba import Mamba
from mobius_hf.config import ConfigFields


class FalconMamba(Mamba):
    """Mamba with norms, without weights, of what the scan's parameters are made from."""

    model_type = "falcon_mamba"
    defaults: ClassVar[Mapping[str, Any]] = {**Mamba.defaults, "mixer_rms_eps": 1e-6}

    def parameter_norm(self, fields: ConfigFields) -> dict[str, Any]:
        """Return the arguments for the norms."""
        return {
            "parameter_norm": "rms_plain",
            "parameter_norm_eps": fields.number("mixer_rms_eps"),
        }


ARCHITECTURE = FalconMamba()
