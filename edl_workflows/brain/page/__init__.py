"""The page for people: `web` serves its `files`; `reading` is what it asks the API for, in the words of `views`."""
