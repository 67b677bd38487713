"""How the processes of a run find their chips and each other: the variables for it."""
