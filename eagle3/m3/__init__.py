"""A target of MiniMax-M3's shape: dense layers first, then sparse ones, all attention through msa."""
