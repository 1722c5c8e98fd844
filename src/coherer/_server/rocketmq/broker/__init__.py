"""The RocketMQ broker: request handlers and services over the store and the rules."""
