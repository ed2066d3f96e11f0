"""A run as a picture in a notebook's cell: while it trains, and still there when it is over."""
