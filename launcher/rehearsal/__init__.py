"""A run on the emulator, first in peace, then under scripted faults; and what is to be held of it.

In reading order: `scenarios` (what is to happen, from YAML), `draw` (the same by chance),
`triggers` (when), `place` (where, and what was left there), `deeds` (what is done), `conduct` (one
scenario, with a real launcher), `compare` and `judge` (pure: from run folders to findings),
`series` (all scenarios in their order), `table`.
"""
