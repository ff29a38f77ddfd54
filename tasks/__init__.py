"""The verbs: plain functions that load, ask a policy and act through a port."""
