"""Backends by name: one folder each with the same file names. Reached only through `portagemm.hal.registry`."""
