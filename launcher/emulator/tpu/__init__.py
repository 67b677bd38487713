"""The Cloud TPU API: nodes, queued resources, their operations, in v2 and v2alpha1."""
