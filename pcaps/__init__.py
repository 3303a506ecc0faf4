"""Captures of this project's own, and the program that records them."""
