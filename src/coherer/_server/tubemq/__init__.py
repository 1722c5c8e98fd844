"""TubeMQ's master and broker, and the service that runs them in a node."""
