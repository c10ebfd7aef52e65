"""Reading a run: committed states only, by layer, regime or item, from runs larger than memory. `run` holds what a user meets."""
