"""The binarized dataset format, and batches of its sentence pairs."""
