"""`coherer replay`: a range of a topic again, into a topic or a group."""
