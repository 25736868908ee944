"""Turns what clients ask into token ids and stores it in the log."""
