"""What the libraries of a program are asked to do: one module a library, and one owner of their attributes.

Nothing here knows an account, a cause or a sentence, and no other room wraps an attribute of a library, or looks for
its module.
"""
