"""The commands of `qpr`."""
