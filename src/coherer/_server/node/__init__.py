"""The process: its options, its start and stop, its administration over HTTP."""
