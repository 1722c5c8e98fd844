"""Plugs for other projects: each module here needs its extra, and `import coherer` loads none."""
