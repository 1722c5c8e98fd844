"""The pages: each module holds the handlers of one part, and its table of routes."""
