"""Prints the document with all codes: ``python -m graphcheck.catalogue > docs/codes.md``."""

from graphcheck.catalogue.pages import document

print(document(), end="")
