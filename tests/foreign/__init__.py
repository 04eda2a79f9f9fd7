"""Graphs that others made, optimised for every execution provider."""
