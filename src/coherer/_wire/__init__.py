"""The wire protocols, sans-IO: bytes to messages and back."""
