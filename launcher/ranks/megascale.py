"""What makes one program of several slices: the MEGASCALE_* variables, made anew for each attempt.

libtpu and JAX read them from the environment, and from the metadata where the environment has none.
Nothing found on a host is used: metadata can be of another job, or of a slice that was replaced
(ray-project/ray#62893). It is checked, where it should tell the truth:
`launcher.provisioning.joining.said`.
"""

COUNT, INDEX = "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID"
COORDINATOR, PORT = "MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_PORT"
KEYS = (COORDINATOR, COUNT, INDEX, PORT)
