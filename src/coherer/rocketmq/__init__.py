"""The RocketMQ protocol, sans-IO: bytes in, objects out, and back. No socket, no clock."""
