"""HTTP: metrics, health and status on TCP, commands on the Unix socket. waitress's only door."""
