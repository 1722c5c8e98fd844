"""Modules that every layer uses: clocks, logging, masking of secrets, error codes."""
