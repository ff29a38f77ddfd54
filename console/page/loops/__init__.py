"""The pages of loops: the list, the board with its graph, and the work in a repository."""
