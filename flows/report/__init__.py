"""How a run went: its page, its pictures, its last lines."""
