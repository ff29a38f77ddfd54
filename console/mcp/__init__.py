"""Loops for agents: the control API as tools of the Model Context Protocol."""
