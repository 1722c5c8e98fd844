"""The TubeMQ broker."""
