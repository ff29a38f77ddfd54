"""Pure values and decisions: no broker, no clock, no randomness, no files, no network."""
