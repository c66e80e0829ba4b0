"""Attacks on a guest: what a capture, a resumption or a reader must not do to the program, its files, the machine."""
