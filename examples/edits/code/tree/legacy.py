"""Nobody imports this any more."""
