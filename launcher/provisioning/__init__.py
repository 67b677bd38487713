"""Slices: what to ask for, in which order; what is held of it, and how it is given back."""
