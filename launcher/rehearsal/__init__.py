"""A run on the emulator, first in peace, then under scripted faults; and what is to be held of it.

In reading order: `scenarios` (what is to happen, from YAML), `draw` (the same by chance),
`triggers` (when), `deeds` (what is done), `conduct` (one scenario, with a real launcher),
`leaks` (what was left), `compare` and `judge` (pure: from run folders to findings), `table`.
"""
