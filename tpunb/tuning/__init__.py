"""What may be changed of a program that trains, and what it gains by it."""
