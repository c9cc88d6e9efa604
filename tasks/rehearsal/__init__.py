"""Will it fit, and how fast will it be: every cell of params.yaml rehearsed on a card that nobody has rented yet."""
