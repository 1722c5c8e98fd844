"""A node: its options, start and stop, and its administration over HTTP."""
