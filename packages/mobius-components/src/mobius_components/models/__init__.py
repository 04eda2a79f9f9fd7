"""Whole models, assembled from layers."""

from mobius_components.models.causal_lm import CausalLMModel, DecoderModel

__all__ = ["CausalLMModel", "DecoderModel"]
