"""One program for each claim about speed, memory or quality."""
