"""The simulator's schedulers: their contract and live policies (`scheduler`), and those that exist only
here."""
