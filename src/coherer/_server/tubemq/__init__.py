"""TubeMQ's master and broker."""
