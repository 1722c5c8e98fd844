"""Administration of RocketMQ clusters."""
