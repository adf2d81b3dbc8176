"""What Brain keeps, on SQLite or PostgreSQL.

- `store`: rows in; `reader`: rows out; `stored`: the values that they are
- `writer`: group commit; `retention`: what becomes of old rows
- `tables` and `migrations`: the schema; `database`: the connection
"""
