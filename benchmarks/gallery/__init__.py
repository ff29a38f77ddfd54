"""Real failures with their corrected prompts: ``docs/corrected-prompts.md``."""
