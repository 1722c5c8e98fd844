"""What the servers of both protocols share: appending, saving, flushing."""
