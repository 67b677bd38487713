"""Slices: what to ask for, in which order, and how it is given back."""
