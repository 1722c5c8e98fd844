"""The name server: where brokers register and clients ask for routes."""
