"""A node: both protocols' servers on one core, their ports, start and stop, and its pages."""
