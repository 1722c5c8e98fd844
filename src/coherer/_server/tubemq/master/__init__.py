"""The TubeMQ master: permissions and routes of producers and consumers."""
