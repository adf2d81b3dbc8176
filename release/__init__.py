"""What is made of a release beside the package itself."""
