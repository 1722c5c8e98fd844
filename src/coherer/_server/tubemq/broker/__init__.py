"""The TubeMQ broker: messages in, messages out, over the store and the rules."""
