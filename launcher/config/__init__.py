"""How YAML files and overrides become a checked configuration; `launcher.compose` is the way in.

In the order of the work:

    overrides.py   the command line, parsed; what each override sets
    files.py       the config folders, their options, the syntax of the files chosen
    composition.py  Hydra's composition, with the origin of every key
    origins.py     for each key: file and line, or override, and the text as written
    resolve.py     interpolations and missing values; a plain dict comes out
    texts.py       values for a process, byte for byte as written
    schema.py      the closed JSON Schemas
    checks.py      what a schema cannot say, with offer_checks.py (which slices, when),
                   machine_checks.py (the VMs), target.py (the program and its files) and
                   framework_checks.py (whether it is one for the mode)
    build.py       the Spec, with notes.py: what is not wrong, but worth knowing

A stage returns what it made and the problems it found; a key with a problem is left out of the
later stages, so that each problem is told once.
"""
