"""Where a master keeps its state: ConfigMaps, a folder of a volume, or the file of a standalone master."""
