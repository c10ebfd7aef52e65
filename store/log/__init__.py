"""The commit log of a run and the records around it: leases, manifest notes, folds, and the sweep after dead writers."""
