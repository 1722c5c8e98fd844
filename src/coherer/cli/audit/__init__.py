"""`coherer audit`: counts the messages that were sent, stored, consumed and landed."""
