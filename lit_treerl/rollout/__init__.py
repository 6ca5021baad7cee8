"""Growing trees: sampler, environments and search joined."""
