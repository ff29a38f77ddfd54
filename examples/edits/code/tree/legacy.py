"""No module imports this any more."""
