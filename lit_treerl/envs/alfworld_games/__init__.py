"""Games for ALFWorld made offline from what its package ships: rooms, affordances, goals, rules and words."""
