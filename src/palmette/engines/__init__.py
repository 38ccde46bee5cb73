"""What runs the programs of an algorithm: all nodes stacked in one process, or each node as a machine of its own."""
