"""`coherer audit`: what was sent, stored, consumed and landed."""
