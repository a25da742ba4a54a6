"""The binarized dataset format, and batches made from it."""
