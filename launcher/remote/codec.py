"""A Spec, or any frozen dataclass of its kind, as JSON and back: see `launcher.codec`."""

from launcher.codec import from_json, to_json

__all__ = ["from_json", "to_json"]
