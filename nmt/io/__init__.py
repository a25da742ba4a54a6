"""Atomically written files, JSON documents with checksums, and lines of text."""
