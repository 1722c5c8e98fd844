"""The RocketMQ name server, where brokers register and clients look up routes."""
