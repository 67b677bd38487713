"""`doctor`: what stands between a configuration and its run, with the mend of each.

In reading order: `findings` (what a check says), `context` (what it looks at), `examine` (all of
them at once), `checks` (the table), then one module for each kind of check.
"""
