"""What people see: the command line, the HTTP API and the web page."""
