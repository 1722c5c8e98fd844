"""What the clients of both protocols are made of."""
