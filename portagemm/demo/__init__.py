"""The demonstration: a sentence-embedding model whose every linear layer runs through portagemm.linear."""

from __future__ import annotations
