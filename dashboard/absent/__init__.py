"""A database backend for a process that was given no URL for the pages: every use says so."""
