"""Administration of a broker; `broker.requests` has the table of its codes."""
