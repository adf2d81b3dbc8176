"""The web page: `web` serves its `files`; `queries` answers its requests to the API with `messages`."""
