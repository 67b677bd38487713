"""Compute Engine, as far as a coordinator needs it: VMs and firewall rules."""
