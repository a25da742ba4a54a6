"""The machine: processes, devices, memory and number formats."""
