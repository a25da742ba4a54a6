"""Reports of a training: lines, the log, the panel, and external loggers."""
