"""The composition root and everything that touches the world."""
