"""Lists of Compute Engine: `filter`, `maxResults` and `pageToken`.

Of the filter language (https://cloud.google.com/compute/docs/reference/rest/v1/instances/list) it
knows `field=value` and `field!=value`, the field with dots, such as `labels.run`, alone or joined
by AND, each in parentheses or not.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from launcher.emulator.http.fields import invalid

Json = dict[str, Any]
MOST = 500
_TERM = re.compile(r"\(?\s*([\w.-]+)\s*(!?=|:)\s*(\"[^\"]*\"|[^\s()\"]+)\s*\)?")


def listing(kind: str, items: Iterable[Json], query: Mapping[str, str]) -> Json:
    """One page of the items that the query asks for, in the order of their names."""
    found, token = _page(select(items, query), query)
    return {
        "kind": kind,
        "id": kind,
        **({"items": found} if found else {}),
        **({"nextPageToken": token} if token else {}),
    }


def select(items: Iterable[Json], query: Mapping[str, str]) -> list[Json]:
    """The items that match the query's filter; ApiError 3 if it is not understood."""
    terms = list(_terms(query.get("filter", "")))
    return [item for item in items if all(_matches(item, *term) for term in terms)]


def _terms(text: str) -> Iterable[tuple[str, str, str]]:
    left = text.strip()
    while left:
        match = _TERM.match(left)
        if not match:
            raise invalid("filter", text, "Invalid list filter expression.")
        yield match[1], match[2], match[3].strip('"')
        left = re.sub(r"^AND\b", "", left[match.end() :].strip()).strip()


def _matches(item: Mapping[str, Any], field: str, operator: str, value: str) -> bool:
    found: Any = item
    for part in field.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if operator == ":":  # presence with `*`, else a word of the value
        return found is not None and (value == "*" or value in str(found))
    text = str(found).lower() if isinstance(found, bool) else str(found)
    return (found is not None and text == value) == (operator == "=")


def _page(items: Sequence[Json], query: Mapping[str, str]) -> tuple[list[Json], str]:
    size, after = _size(query.get("maxResults", "")), _after(query.get("pageToken", ""))
    rest = sorted((item for item in items if item["name"] > after), key=lambda item: item["name"])
    now = rest[:size]
    more = len(rest) > len(now) > 0
    return now, base64.urlsafe_b64encode(now[-1]["name"].encode()).decode() if more else ""


def _size(text: str) -> int:
    if not re.fullmatch(r"[0-9]{0,4}", text) or int(text or 0) > MOST:
        raise invalid("maxResults", text, f"Values are between 0 and {MOST}.")
    return int(text or 0) or MOST


def _after(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except ValueError:  # no base64, or no text in it
        raise invalid("pageToken", token, "Invalid page token.") from None
