"""What an answer says, as people and models write it, and whether two of them are the same."""
