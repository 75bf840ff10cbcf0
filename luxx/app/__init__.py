"""The application: what is built at a start, the server, the command line."""
