"""An engine's log: its lines as they come, the milestones of its start, and what is expected."""
