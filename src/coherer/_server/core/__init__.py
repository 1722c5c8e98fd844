"""The part of a node that knows no protocol: appending, flushing, tables and their files."""
