"""The whole server measured from outside: callers in one process, a server in others, and what can be seen of them."""
