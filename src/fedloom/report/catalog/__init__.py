"""What `fedloom list` shows: every kind of name that a recipe may use, grouped, and all that is known of one."""
