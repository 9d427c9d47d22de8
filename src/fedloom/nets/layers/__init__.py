"""Heads, normalizers and convolutions that nets and methods are built from."""
