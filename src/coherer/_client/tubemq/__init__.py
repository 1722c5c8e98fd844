"""The client of TubeMQ: producers, consumers and readers that share one connection per server."""
