"""Models by their public name: `mobius.models.CausalLMModel`."""

from mobius_components.models import CausalLMModel

__all__ = ["CausalLMModel"]
