"""Words that a mistyped word may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from launcher.accelerators import did_you_mean

_FEW = 12


def nearest_hint(word: str, known: Iterable[str]) -> str:
    """`did you mean …?`, or nothing if none is near."""
    lowered = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return did_you_mean(tuple(lowered[name] for name in close))


def nearest_or_all(word: str, known: Iterable[str]) -> str:
    """`did you mean …?`, or the list of what is known if none is near and the list is short."""
    names = sorted(known)
    every = f"known are {', '.join(names)}" if len(names) <= _FEW else ""
    return nearest_hint(word, names) or every
