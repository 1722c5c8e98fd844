"""The RocketMQ broker: messages in, messages out, over the store and the rules."""
