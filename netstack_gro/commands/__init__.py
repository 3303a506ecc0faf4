"""The commands of ``netstack-gro``, a module each: its arguments, and what it does with them."""
