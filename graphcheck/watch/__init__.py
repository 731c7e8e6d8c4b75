"""Watchers: evidence beside the rungs (reachable state, differential records, declared allocation)."""
