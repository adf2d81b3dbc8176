"""The commands about jobs: ``edl run``, ``edl submit``, ``edl get``, the stages, and others."""
