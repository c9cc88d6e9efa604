"""How the cost of a comparison grows with its rows and epochs: time and memory, each part in a process of its own."""
