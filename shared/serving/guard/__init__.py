"""Who is let in, when it's their turn, and how long they may take."""
