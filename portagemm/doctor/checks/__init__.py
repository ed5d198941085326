"""The checks, one file a group. Every module in this folder is imported and registers its checks."""

from __future__ import annotations
