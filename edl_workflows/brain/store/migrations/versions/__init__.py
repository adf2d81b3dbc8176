"""One module a change. A change that was released is never edited."""
