"""The engine processes: started, watched, replaced, and their answers carried on."""
