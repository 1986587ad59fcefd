"""Before a run: what a configuration will cost its clients, and how long it will take."""
