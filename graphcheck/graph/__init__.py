"""Inspection of a captured graph: its nodes, what its arguments point at, and how two graphs differ."""
