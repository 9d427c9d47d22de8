"""Tables and the page."""
