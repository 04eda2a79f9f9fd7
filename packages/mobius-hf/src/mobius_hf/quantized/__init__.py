"""Checkpoints that were quantized by others: one file a format, and the table of them."""

from mobius_hf.quantized.expected import expected_quantization
from mobius_hf.quantized.methods import decode_checkpoint

__all__ = ["decode_checkpoint", "expected_quantization"]
