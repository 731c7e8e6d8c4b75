"""Training of the byte-level pair in this repository, as ``python -m eagle3.m3.training``."""
