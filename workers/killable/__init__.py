"""Work that may explode runs in a warm child process that can be killed: ``pool.call_killable``."""
