"""One VM: its metadata server, its process 1, and what its startup script sees."""
