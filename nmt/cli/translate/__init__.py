"""`nmt translate`: options, reading and writing, and translation at a terminal."""
