"""Ways into stacks and libraries of others. Each module says whose."""
