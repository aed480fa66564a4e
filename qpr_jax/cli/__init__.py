"""The command `qpr`."""
