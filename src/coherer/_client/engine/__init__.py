"""Parts of clients that both protocols share."""
