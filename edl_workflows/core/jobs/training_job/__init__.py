"""TrainingJob: Paddle EDL's jobs of a master, parameter servers and elastic trainers."""
