"""The form of a known error message: how it is recognised, what it means and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from portagemm.doctor.check import Remedy


@dataclass(frozen=True)
class KnownMessage:
    """A failure that announces itself by a text.

    Attributes:
        id: unique, lower case, words joined by hyphens.
        vendor: "nvidia", "amd" or "any".
        means: the diagnosis.
        remedies: what to do, in order of preference.
        phrases: texts as programs print them. Case, spacing, line breaks and quotes do not matter; the end or
            the beginning may be cut off.
        patterns: regular expressions for the same with parts that vary. They see the text without white space,
            and their own spaces are there for the reader: write `_?`, not `[ _]`.
        codes: CUDA's error numbers that mean it; they are found by name, or near a word that says CUDA.
        weak, weak_codes: patterns and numbers that other failures share: what they find is "possible" rather than
            "likely".
        unless: patterns that rule the message out.
        checks: ids of the doctor's checks that test for the cause on the machine itself.
        sources: documentation, or reports as owner/repository#number.
    """

    id: str
    vendor: str
    means: str
    remedies: tuple[Remedy, ...]
    phrases: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    weak: tuple[str, ...] = ()
    weak_codes: tuple[int, ...] = ()
    unless: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def do(text: str, command: str = "") -> Remedy:
    """A remedy anyone can apply."""
    return Remedy(text, command)


def root(text: str, command: str = "") -> Remedy:
    """One that needs root."""
    return Remedy(text, command, root=True)


def reboot(text: str, command: str = "") -> Remedy:
    """One that needs root and a reboot."""
    return Remedy(text, command, root=True, reboot=True)


def relogin(text: str, command: str = "") -> Remedy:
    """One that needs root and a new session of the user."""
    return Remedy(text, command, root=True, relogin=True)


def windows(text: str, command: str = "") -> Remedy:
    """One for the Windows side of WSL."""
    return Remedy(text, command, windows=True)
