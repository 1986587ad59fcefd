"""`fl-shuffle new`: a Flower app of your own, written from the template `template.md`."""
