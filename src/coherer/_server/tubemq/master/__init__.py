"""The TubeMQ master: who may send and read what, and where."""
