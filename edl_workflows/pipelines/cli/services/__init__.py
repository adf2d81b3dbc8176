"""The commands that run or install services: ``edl controller``, ``edl master``, ``edl local``, and
others."""
