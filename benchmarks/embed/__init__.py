"""`make bench-embed`: inside stacks and libraries of others, merging and not, in one run.

Each part measures what it compares in turn, round after round, and its ratios are those of each
round.
"""
