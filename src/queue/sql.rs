//! A queue in a table of SQLite.
