"""Files that appear whole, JSON documents with checksums, and text as lines."""
