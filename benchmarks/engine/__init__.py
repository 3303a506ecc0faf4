"""The engine alone: what a packet costs it, and how near that is to what memory allows."""
