"""Trainings as people start them: each process writes its own steps, and none imports tpunb.

The programs run in folders of their own, as scripts; `truth` beside them is what they share.
"""
