"""The commands: each parses, builds one configuration, calls one function, prints one result."""
