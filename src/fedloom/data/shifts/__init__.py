"""Shifts: inputs and labels that differ from client to client. One per file; `fedloom.data.split` imports them all."""
