"""What a part is, how parts add up, and what their hooks see."""
