"""Tables for the terminal and for papers, progress bars, pictures of splits, and the HTML page (`page/`)."""
