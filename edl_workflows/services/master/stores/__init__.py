"""Where a master keeps its state: ConfigMaps, a folder of a volume, a Brain, or the file of a standalone
master."""
