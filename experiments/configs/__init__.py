"""Named settings, a file each; the name is that of the file."""
