"""The project and its pages. May import `workitems`; nothing imports it."""

VERSION = "0.1.0"
