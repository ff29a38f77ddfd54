"""Edits of a tree: operations, the files they write, sessions and rollback."""
