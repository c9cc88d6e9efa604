"""Where rows and base models come from, and the store in .work/download/ that keeps what has arrived."""
