"""`selfsched demo`: two real jobs share two CPU slots through a real broker, and an account of it."""
