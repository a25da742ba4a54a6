"""The commands: each parses flags, builds a configuration, calls a function, prints the result."""
