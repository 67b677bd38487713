"""Attempts of a run: started on all hosts, followed, charged, begun again."""
