"""One small module a HuggingFace `model_type`, imported when a checkpoint needs it.

A module is called as its `model_type` with `_` for `-`, and holds `ARCHITECTURE`.
"""
