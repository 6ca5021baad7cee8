"""What the scripted agent thinks, and the embedded policy after it."""

THOUGHTS = ("search", "fetch", "bring", "clean", "heat", "cool", "light", "done")
