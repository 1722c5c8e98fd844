"""The client of RocketMQ clusters."""
