"""Brain's store, on SQLite or PostgreSQL.

- `store`: writing; `reader`: reading; `records`: the stored values
- `states`: what masters keep here; `writer`: group commit; `retention`: removal of old rows
- `tables` and `migrations`: the schema; `database`: the connection
"""
