"""`coherer replay`: sends messages of a topic again, to a topic or to a group."""
