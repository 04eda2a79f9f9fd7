"""The version of this distribution, and nothing else: build tools read it as text."""

__version__ = "0.1.0"
