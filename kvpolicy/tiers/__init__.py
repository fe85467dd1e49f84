"""What moves between tiers, and when: the gate of fetches, pushes, demotion and promotion, background work. Pure."""
