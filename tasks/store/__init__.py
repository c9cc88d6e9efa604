"""Finished work, kept by the digest of what went into it, and linked into outputs."""
