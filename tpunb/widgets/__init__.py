"""What a notebook shows: made of HTML, SVG and text, from frames."""
