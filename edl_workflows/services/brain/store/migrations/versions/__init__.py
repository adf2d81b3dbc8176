"""One module for each migration. Migrations that were released are never edited."""
