"""Ways into stacks and libraries of others. Each module says whose, and imports it when used."""
