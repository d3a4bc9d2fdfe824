"""Xids: how the driver words them, and what each one asks for."""
