"""What is made of a release beside the package itself, and files that are made of others' releases."""
