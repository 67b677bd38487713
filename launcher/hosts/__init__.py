"""What runs on a TPU VM: Ray ships these modules to every host by value."""
