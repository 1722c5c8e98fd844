"""The options of a node and of its servers, and how users set them."""
