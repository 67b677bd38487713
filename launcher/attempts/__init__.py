"""Attempts of a run: what they hold; started on all hosts, followed, charged, begun again."""
