"""HuggingFace checkpoints as a model source for Mobius: folders, hub ids, safetensors.

The entry point is `mobius_hf.source:source`, in the group `mobius.sources`. Importing this package
loads none of its modules.
"""

from mobius_hf.__about__ import __version__

__all__ = ["__version__"]
