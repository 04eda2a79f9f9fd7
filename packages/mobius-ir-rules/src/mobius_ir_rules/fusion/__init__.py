"""Rules that make fused operators of standard ones, one rule a file."""
