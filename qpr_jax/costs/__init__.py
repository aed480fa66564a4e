"""What a command will take: time, memory and disk, from a second of measuring."""
