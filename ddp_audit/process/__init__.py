"""How things are said and how processes end: what the audit shares with tasks/."""
