"""Edits of a tree: what each operation changes, written whole or not at all, and undone."""
